#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace trimtab::experts {

struct DriftConfig {
  /// Steps after the plan that are looked at, the last ones; and how many there must be.
  std::int32_t steps_max = 64, steps_min = 16;
  /// Balance above what may be expected that is borne.
  double tolerance = 0.02;
  /// Standard errors of the held-out balance that count as noise.
  double sigmas = 3;
  /// Steps in a row that must be over the threshold; a step below half the tolerance starts anew, one in
  /// between keeps the count (hysteresis).
  std::int32_t confirm_steps = 4;
  /// After an alarm that led to no new plan: steps of silence.
  std::int32_t quiet_steps = 256;
};
base::Status check(const DriftConfig& config);

/// The numbers behind a verdict; balance is busiest over mean rank.
struct DriftVerdict {
  bool alarm = false;
  double promised = 1;        // by the plan, on the window it was made from
  double noise_floor = 1;     // what counting alone does to a plan that is right in the mean
  double held_out = 1;        // measured over the last steps since the plan
  double standard_error = 0;  // of held_out
  double threshold = 1;       // max(promised, noise_floor) + tolerance + sigmas x standard_error
  std::int32_t steps = 0;     // that held_out is made of
  std::int32_t over = 0;      // of them in a row over the threshold
  std::int32_t quiet = 0;     // steps of silence left
};

/// 1 + E[max of `ranks` normals] / sqrt(mean): the balance of ranks whose loads are Poisson with equal means
/// of `mean_tokens`. Exact enough (0.001) from 50 tokens on; no libm beyond sqrt, so the same everywhere.
double noise_floor(std::int32_t ranks, double mean_tokens);

/// Says when a layer's plan (or a whole model's: feed sums over layers) must be replaced before its time,
/// because balance on the steps since is worse than what it promised on the steps that made it.
///
/// Algorithm: ratio of sums over the last steps_max steps against the promise or the counting noise,
/// whichever is worse, plus a tolerance and standard errors (residuals peak - ratio x mean). A promise below
/// the noise floor was fit to noise and can't be held by anybody. Cost: steps_max additions a step, steps_max
/// x 16 bytes. Weakness: steps are taken as independent; slow drift inside the window hides in the standard
/// error.
class DriftDetector {
 public:
  /// `layers`: of how many layers `observe` is given the sums.
  static base::Result<DriftDetector> make(const DriftConfig& config, std::int32_t ranks,
                                          std::int32_t layers = 1);

  /// A new plan is in force, which promises this balance: forget the steps before it. Error: below 1 or not
  /// finite.
  base::Status promise(double balance);
  /// An alarm was weighed and no plan came of it.
  void dismiss();
  /// One step after the plan: its busiest rank's and its mean rank's tokens. A step without load says
  /// nothing. Errors: negative or not finite, busiest below mean.
  base::Result<DriftVerdict> observe(double busiest_tokens, double mean_tokens);
  /// The verdict as of now. Before the first promise() there is no alarm.
  const DriftVerdict& verdict() const { return verdict_; }

 private:
  struct Step {
    double busiest, mean;
  };
  void judge();

  DriftConfig config_;
  std::int32_t ranks_ = 1, layers_ = 1;
  bool promised_ = false;
  std::vector<Step> ring_;
  std::size_t next_ = 0;
  DriftVerdict verdict_;
};

/// "held-out 1.092 over 64 steps > 1.071 (promised 1.031, counting noise 1.036)".
std::string describe(const DriftVerdict& verdict);

/// What moving would cost and give; one layer, or sums over layers.
struct WorthInput {
  double balance_now = 1;      // of the map in force on the window
  double balance_planned = 1;  // of the new map on the same window
  /// Part of that gain which holds on later steps: planning fits the window's noise too.
  double gain_kept_ratio = 0.5;
  double noise_floor = 1;            // no plan is better than this on later steps
  double step_ns = 0;                // time of a step that follows the busiest rank, at balance_now
  double steps_until_next = 0;       // until the next re-placement
  double bytes_busiest_rank = 0;     // sent or received by the rank that moves most
  double bandwidth_bytes_per_s = 0;  // of its link
  /// Part of the moving time that serving loses: 1 when it waits, less when moves hide behind steps.
  double stall_ratio = 1;
  /// Gain must be so many times the cost.
  double payback_ratio = 1;
};
struct Worth {
  bool pays = false;
  double gain_ns_per_step = 0, gain_ns = 0, cost_ns = 0;
  /// Steps until the moves are paid; 0 when nothing moves, -1 when never.
  double break_even_steps = 0;
};
/// Errors name a value that is negative or not finite, a bandwidth of 0 with bytes to move.
base::Result<Worth> worth(const WorthInput& input);
/// "saves 12.1 us a step, moves cost 8.4 ms: pays after 694 of 1000 steps".
std::string describe(const Worth& worth, double steps_until_next);

enum class Replacement : std::uint8_t {
  kKeep,       // not due, no alarm
  kScheduled,  // due, and the new plan pays
  kEarly,      // an alarm, and the new plan pays
  kSkip,       // due or alarmed, but the new plan would not pay for its moves
};
/// Joins the three: due (Statistics::due), the alarm, the worth of the plan made because of one of them.
Replacement decide_replacement(bool due, const DriftVerdict& drift, const Worth& worth);

}  // namespace trimtab::experts
