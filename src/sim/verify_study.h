#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <tuple>
#include <vector>

#include "base/prng.h"
#include "sim/decode_group.h"

/// For tests and benches: one simulated decode group at steady load, whose requests and placement are those
/// of the study in policy/speculate/study.h, with its fitted step. What differs from it: answers end when
/// their tokens are made, so rarely accepted requests stay longer, and a rule that makes more tokens ends
/// requests sooner.
namespace trimtab::sim::study {

struct Load {
  std::int64_t requests_per_rank = 60;
  std::int64_t warm_steps = 200, steps = 400;
  std::uint64_t seed = 1;
  double prompt_median_tokens = 6'900, prompt_sigma = 1.05, output_mean_tokens = 343;
};

struct Outcome {
  double tokens_per_s = 0, accepted_length = 0, step_ms = 0, verified = 0;
  StepTimes times;
};

/// 64 ranks with the study's step; experts by number, lognormal 0.8, without drift.
inline model::Scenario scenario_of(model::VerifyPolicy policy, model::SimulationSpeed speed) {
  model::Scenario scenario;
  scenario.speed = speed;
  scenario.cluster.decode.ranks = 64;
  scenario.cluster.decode.kv_blocks = 1 << 20;
  scenario.cluster.decode.max_running = 256;
  scenario.profile.decode_step = {base::Nanos{10'000'000}, 1.5, 8e3, 15.5e3, {}};
  scenario.verify.policy = policy;
  scenario.verify.weights = base::Nanos{8'000'000};
  scenario.verify.unprofiled = base::Nanos{3'800'000};
  scenario.verify.sampler = base::Nanos{1'000'000};
  scenario.verify.sampler_row_ns = 2e3;
  scenario.decode.expert_balance = 2.0;
  return scenario;
}

class World final : public Host {
 public:
  World(const model::Scenario& scenario, const Load& load)
      : load_(load),
        prng_(load.seed),
        ranks_(scenario.cluster.decode.ranks),
        fast_(scenario.speed == SimulationSpeed::kFast),
        group_(EngineId{0}, scenario, *this) {
    const auto all = static_cast<std::int64_t>(ranks_) * load.requests_per_rank;
    for (std::int64_t i = 0; i < all; ++i) draw();
    if (fast_) queue_.after(kReports, EventKind::kReport);
  }

  Outcome run() {
    run_until(static_cast<std::uint64_t>(load_.warm_steps));
    const std::int64_t tokens = tokens_;
    const std::uint64_t steps = group_.steps();
    const Nanos began = queue_.now();
    StepTimes before = group_.times();
    run_until(steps + static_cast<std::uint64_t>(load_.steps));
    Outcome outcome;
    const double seconds = base::to_seconds(queue_.now() - began);
    const auto passed = static_cast<double>(group_.steps() - steps);
    outcome.tokens_per_s = static_cast<double>(tokens_ - tokens) / seconds;
    outcome.accepted_length = static_cast<double>(tokens_ - tokens) / passed / static_cast<double>(ranks_) /
                              static_cast<double>(load_.requests_per_rank);
    outcome.step_ms = seconds * 1e3 / passed;
    outcome.times = group_.times();
    outcome.times.add(before, -1.0);
    return outcome;
  }

  EventQueue& queue() override { return queue_; }
  SimRequest& request(std::uint32_t slot) override { return requests_[slot]; }
  void tell(cluster::Event event) override {
    const auto* stepped = std::get_if<cluster::DecodeStepped>(&event);
    if (stepped == nullptr) return;
    for (const auto& one : stepped->tokens) {
      tokens_ += one.count;
      if (one.finish == model::FinishReason::kNone) continue;
      free_.push_back(slot_of(one.id));
      draw();
    }
  }

 private:
  static constexpr Nanos kReports{1'000'000'000};
  void run_until(std::uint64_t steps) {
    while (group_.steps() < steps) {
      const QueuedEvent event = queue_.pop();
      if (event.kind == EventKind::kDecode) group_.woken(event.b);
      if (event.kind == EventKind::kHandedOver) place(event.a);
      if (event.kind == EventKind::kReport) {
        group_.report_all();
        queue_.after(kReports, EventKind::kReport);
      }
    }
    if (fast_) group_.report_all();
  }
  void draw() {
    std::uint32_t slot = static_cast<std::uint32_t>(requests_.size());
    if (free_.empty()) {
      requests_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    SimRequest& request = requests_[slot];
    const std::uint64_t pass = request.decode_pass;
    request = SimRequest{};
    request.decode_pass = pass + 1;
    request.id = RequestId{++drawn_ << kSlotBits | slot};
    const double prompt = load_.prompt_median_tokens * std::exp(load_.prompt_sigma * prng_.normal());
    request.prompt = 1 + static_cast<std::int64_t>(std::min(prompt, 128'000.0));
    request.output = 1 + static_cast<std::int64_t>(prng_.exponential(load_.output_mean_tokens));
    queue_.after(Nanos{0}, EventKind::kHandedOver, slot);
  }
  /// Fewest requests of the ranks that stay under the mean KV plus 2.4 requests, else least KV.
  void place(std::uint32_t slot) {
    SimRequest& request = requests_[slot];
    double all = static_cast<double>(request.prompt), running = 1;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      all += group_.kv(rank);
      running += static_cast<double>(group_.running(rank));
    }
    const double line = all / ranks_ + 2.4 * all / running;
    const auto order = [&](std::uint32_t rank) {
      const bool above = group_.kv(rank) + static_cast<double>(request.prompt) > line;
      return std::tuple(above, above ? 0 : group_.running(rank), group_.kv(rank), rank);
    };
    std::uint32_t best = 0;
    for (std::uint32_t rank = 1; rank < ranks_; ++rank)
      if (order(rank) < order(best)) best = rank;
    request.decode.rank = best;
    group_.reserve(best, slot, request.prompt);
    group_.start(slot);
  }

  Load load_;
  base::Prng prng_;
  std::uint32_t ranks_;
  bool fast_;
  EventQueue queue_;
  std::deque<SimRequest> requests_;
  std::vector<std::uint32_t> free_;
  std::uint64_t drawn_ = 0;
  std::int64_t tokens_ = 0;
  DecodeGroup group_;
};

}  // namespace trimtab::sim::study
