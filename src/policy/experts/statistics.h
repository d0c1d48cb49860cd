#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/load_window.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

enum class Phase : std::uint8_t { kPrefill, kDecode };

struct StatisticsConfig {
  Shape shape;
  std::int32_t layers = 0;
  /// N: the steps before a re-placement that count.
  std::int32_t window_steps = 0;
  /// M: counted steps from one re-placement to the next; the first comes after max(1, M / 4). 0: never, the
  /// window is kept for whoever asks.
  std::int64_t interval_steps = 0;
  /// -1: every rank reports to this object. Else the one rank that does: its windows are this rank's part,
  /// to be added up over the ranks (an all-reduce) before planning.
  std::int32_t local_rank = -1;
  /// What the ring may take; see Statistics::memory_bytes.
  std::int64_t memory_bytes_max = std::int64_t{4} << 30;
};

/// The published presets: prefill N 100, M 1,000, 4 redundant slots a rank; decode 1,000, 10,000, 1.
StatisticsConfig preset(Phase phase, std::int32_t experts, std::int32_t ranks, std::int32_t layers);

/// Errors name the value and the fix: a bad shape, no layer, a negative window or interval, an interval
/// without 0 < window <= interval, a rank that does not exist, more memory than allowed.
base::Status check(const StatisticsConfig& config);

/// How a step ended.
enum class StepUse : std::uint8_t {
  kCount,   // its tokens were real
  kIgnore,  // warm-up, a profiling run, or prefill inside a decode engine: neither counts nor time passes
};
enum class StepOutcome : std::uint8_t {
  kRecorded,
  kIgnored,
  kIncomplete,  // a rank did not report: not in the window, but the interval goes on (so it never stalls)
};

/// Tokens of one step by physical slot: the engine's own counter for hosts that have the routing at hand.
/// ids: [tokens, top_k] physical slots of all ranks; rows from `valid_tokens` on are padding and ids of -1
/// are masked: neither counts. Adds to counts [slots_per_rank] what falls on `rank`. An id out of range is an
/// error and nothing is added.
base::Status count_tokens(const Shape& shape, std::int32_t rank, std::span<const std::int32_t> ids,
                          std::int32_t top_k, std::int32_t valid_tokens, std::span<std::int32_t> counts);

/// The loads that plans are made from: a ring of the last N steps, each [layers, experts].
///
/// Every rank counts the tokens of its own slots in a step and clears its counter after it (system facts,
/// section 6). Counts are folded to logical experts as they come, under the maps in force in that step, so
/// the ring outlives changes of maps, of ranks and of slots. Counts are 32 bits in, 64 inside. Cost: one
/// addition per slot and layer; memory as memory_bytes() says, allocated once. Weakness: steps come in order,
/// one at a time; ranks of an EP group meet in every layer, so they cannot drift apart.
class Statistics {
 public:
  /// maps: [layers, slots], in force now.
  static base::Result<Statistics> make(const StatisticsConfig& config, std::span<const std::int32_t> maps);

  /// N x layers x (experts + 2) x 8 bytes for the ring and the open step, and the maps.
  static std::int64_t memory_bytes(const StatisticsConfig& config);

  /// The map of a layer from the open step on. Refused while the open step has reports, since those were
  /// counted under the old map: change maps between steps.
  base::Status set_map(std::int32_t layer, std::span<const std::int32_t> map);
  /// Ranks or slots changed: the ring stays, logical counts are what they were. Not in an open step.
  base::Status reshape(const Shape& shape, std::span<const std::int32_t> maps);

  /// One rank's report of the open step: counts [layers, slots_per_rank]; padding: of the same shape, tokens
  /// among them that were not real, or empty. Errors leave all as it was: a rank twice, a negative count (a
  /// 32-bit counter that wrapped, or one that was not cleared), more padding than tokens.
  base::Status add(std::int32_t rank, std::span<const std::int32_t> counts,
                   std::span<const std::int32_t> padding = {});
  /// Closes the open step and opens the next.
  StepOutcome end_step(StepUse use = StepUse::kCount);

  /// Counted steps have reached the next re-placement. Stays true until restart_interval().
  bool due() const;
  /// Counted steps past the point where re-placement was due: grows for as long as nobody acts.
  std::int64_t overdue_steps() const;
  /// A re-placement was done, or weighed and skipped: the next is due M counted steps from now.
  void restart_interval();

  /// Steps in the window, at most N.
  std::int32_t steps() const { return held_; }
  /// One layer's window, oldest step first, [steps, experts].
  std::vector<std::int64_t> window(std::int32_t layer) const;
  /// All layers', [steps, layers, experts], for planning layers in parallel.
  std::vector<std::int64_t> windows() const;
  /// window(layer) for the planner. Error: no step yet.
  base::Result<LoadWindow> load_window(std::int32_t layer) const;

  /// Measured, with the replicas that tokens really took: the busiest rank and the sum over ranks of the
  /// `age`-th last step (0: the last one). {0, 0} in a rank's own object, which sees one rank only.
  struct RankLoad {
    std::int64_t busiest_tokens = 0, total_tokens = 0;
  };
  RankLoad rank_load(std::int32_t layer, std::int32_t age) const;
  /// Sum of busiest over sum of mean ranks, all layers, over the last `steps` steps; 1 without load.
  double measured_balance(std::int32_t steps) const;

  std::int64_t counted_steps() const { return counted_; }
  std::int64_t ignored_steps() const { return ignored_; }
  std::int64_t incomplete_steps() const { return incomplete_; }
  const StatisticsConfig& config() const { return config_; }

 private:
  Statistics() = default;
  std::size_t row() const;
  void fold(std::int32_t rank, std::span<const std::int32_t> counts, std::span<const std::int32_t> padding);
  void clear_open();

  StatisticsConfig config_;
  std::vector<std::int32_t> maps_;    // [layers, slots]
  std::vector<std::int64_t> ring_;    // [N + 1, layers, experts]; one row is the open step's
  std::vector<RankLoad> rank_loads_;  // [N + 1, layers]
  std::vector<bool> reported_;        // [ranks]
  std::int32_t reports_ = 0, open_ = 0, held_ = 0;
  std::int64_t counted_ = 0, ignored_ = 0, incomplete_ = 0, next_due_ = 0;
};

}  // namespace trimtab::experts
