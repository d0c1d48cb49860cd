#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "model/scenario.h"
#include "sim/expert_layer.h"
#include "sim/expert_popularity.h"
#include "sim/recording.h"

namespace trimtab::sim {

/// Takes the model's sizes from the profile where the scenario has none, and draws the popularity that all
/// groups share. Does nothing while experts are not modelled. Errors: shapes that cannot be.
base::Status prepare_experts(model::Scenario& scenario);

/// A step's expert load.
struct ExpertLoad {
  double balance = 1;    // busiest rank over mean, mean over the layers
  double avoidable = 0;  // of it: what a plan from the loads of the moment would not have
  double stall_ns = 0;   // copies that move under this step
};

/// The experts of one EP group in the loop: popularity that drifts with the mix of texts, the production
/// planners at their interval on counts of their window, dispatch, and moves that take time. `layers` layers
/// stand for all of the model's.
///
/// Exact: every step draws counts for every expert (Poisson, so multinomial given their sum), and dispatch by
/// load follows the estimate of the last steps. Fast: the expected busiest rank in closed form, computed when
/// the mix or the maps change and interpolated over the step's tokens; a window's counts are drawn when a
/// plan needs them. Cost: exact about 10 us a layer and step; fast below 0.1 us a step and 0.1 ms a layer and
/// epoch. Weakness: requests of one text are not told apart, so loads of one step are only as bursty as
/// multinomial counts; tokens are not whole when copies share.
class ExpertGroup {
 public:
  /// `ranks`: of the EP group. `stream`: of its random numbers. The scenario was prepared.
  ExpertGroup(const model::Scenario& scenario, const model::ExpertSide& side, std::uint32_t ranks,
              std::uint64_t stream);

  /// Exact: draws one step of `tokens` and goes on.
  ExpertLoad step(double tokens);

  /// Fast: of each of the next steps_to_change() steps.
  ExpertLoad expected(double tokens);
  std::uint64_t steps_to_change() const;
  /// Steps of `tokens` each have passed.
  void advance(std::uint64_t steps, double tokens);

  /// Time that reading the weights of redundant copies adds to a step.
  double copies_ns() const { return copies_ns_; }
  std::uint64_t plans() const { return plans_; }
  std::int64_t received() const { return received_; }  // copies, of the simulated layers
  std::span<const ExpertLayer> layers() const { return layers_; }
  /// Of the first simulated layer.
  ExpertPicture picture() const;

 private:
  struct Move {
    std::uint64_t steps_left = 0;
    double stall_ns = 0;  // of each of them
  };
  struct Past {
    std::uint64_t step = 0;  // from here on
    std::vector<double> weights;
  };
  void end_epoch();
  void passed(double tokens);
  void replan(double tokens);
  void draw_window(std::int32_t layer, double choices, std::vector<std::int64_t>& window);
  void forget_expected();
  double expected_at(int level, bool fresh);
  double interpolated(double tokens, bool fresh);

  const model::Scenario& scenario_;
  const model::ExpertSide& side_;
  experts::Shape shape_;
  bool exact_;
  std::uint64_t interval_ = 0, window_ = 0, next_plan_ = UINT64_MAX, step_ = 0, next_epoch_ = 0;
  TextMix mix_;
  base::Prng counts_;
  std::vector<ExpertLayer> layers_;
  std::vector<Past> past_;  // mixes of the window's epochs
  std::optional<Move> move_;
  double copies_ns_ = 0;
  std::uint64_t plans_ = 0, epochs_ = 0;
  std::int64_t received_ = 0;
  std::vector<double> expected_, fresh_;  // by level of tokens, NaN: not computed since the last change
};

}  // namespace trimtab::sim
