#include "sim/expert_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "experts_eval/synthetic_loads.h"

namespace trimtab::sim {
namespace {

using experts::Shape;
using model::ExpertPolicy;

constexpr std::uint64_t kFreshEpochs = 8;  // a plan for the loads of the moment is made every so many
constexpr int kLevelsPerOctave = 2;        // of tokens, where the expected peak is computed
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

Shape shape_of(const model::ExpertModel& model, const model::ExpertSide& side, std::uint32_t ranks) {
  Shape shape;
  const bool copies = model.policy != ExpertPolicy::kOff;
  const std::int64_t redundant = copies ? std::int64_t{side.redundant_slots_per_rank} * ranks : 0;
  shape.experts = model.experts;
  shape.ranks = static_cast<std::int32_t>(ranks);
  shape.slots = static_cast<std::int32_t>(experts::physical_slots(model.experts, redundant, ranks));
  return shape;
}

struct Preset {
  std::int64_t interval_steps;
  std::int32_t window_steps;
};
constexpr Preset kPrefillPreset{1'000, 100}, kDecodePreset{10'000, 200};
constexpr std::int64_t kOwnIntervalEpochs = 8, kOwnWindowMax = 200;

/// The published presets; ours follow the loads.
void fill_intervals(ExpertPolicy policy, const Preset& preset, model::ExpertSide& side) {
  const bool published = policy == ExpertPolicy::kDeepInfer;
  const std::int64_t own_interval =
      side.epoch_steps * (policy == ExpertPolicy::kRepair ? 1 : kOwnIntervalEpochs);
  if (side.interval_steps == 0) side.interval_steps = published ? preset.interval_steps : own_interval;
  if (side.window_steps > 0) return;
  const std::int64_t own = std::min(kOwnWindowMax, side.interval_steps);
  side.window_steps = published ? preset.window_steps : static_cast<std::int32_t>(own);
}

}  // namespace

base::Status prepare_experts(model::Scenario& scenario) {
  model::ExpertModel& model = scenario.experts;
  if (model.policy == ExpertPolicy::kConstant) return {};
  const model::Profile& profile = scenario.profile;
  if (model.experts == 0) model.experts = model.popularity.experts;  // of recorded routing
  if (model.experts == 0)
    model.experts = profile.experts > 0 ? static_cast<std::int32_t>(profile.experts) : 384;
  if (model.per_token == 0) {
    model.per_token =
        profile.experts_per_token > 0 ? static_cast<std::int32_t>(profile.experts_per_token) : 6;
  }
  if (model.model_layers == 0) {
    model.model_layers = profile.moe_layers > 0 ? static_cast<std::int32_t>(profile.moe_layers) : 40;
  }
  auto popularity = make_popularity(model, scenario.seed);
  if (!popularity) return tl::unexpected<base::Error>(popularity.error());
  model.popularity = std::move(*popularity);
  model.layers = std::min(model.layers, model.popularity.layers);
  fill_intervals(model.policy, kPrefillPreset, model.prefill);
  fill_intervals(model.policy, kDecodePreset, model.decode);
  TRIMTAB_TRY(experts::check(shape_of(model, model.prefill, scenario.cluster.prefill.ranks)));
  return experts::check(shape_of(model, model.decode, scenario.cluster.decode.ranks));
}

ExpertGroup::ExpertGroup(const model::Scenario& scenario, const model::ExpertSide& side, std::uint32_t ranks,
                         std::uint64_t stream)
    : scenario_(scenario),
      side_(side),
      shape_(shape_of(scenario.experts, side, ranks)),
      exact_(scenario.speed == model::SimulationSpeed::kExact),
      interval_(static_cast<std::uint64_t>(side.interval_steps)),
      window_(std::min(interval_, static_cast<std::uint64_t>(side.window_steps))),
      mix_(scenario.experts, side, scenario.seed, stream),
      counts_(scenario.seed, ~stream) {
  const model::ExpertModel& model = scenario.experts;
  for (std::int32_t layer = 0; layer < model.layers; ++layer)
    layers_.emplace_back(shape_, model.policy, model.estimate_steps);
  const bool plans = model.policy != ExpertPolicy::kOff && model.policy != ExpertPolicy::kRedundancy;
  if (plans) next_plan_ = std::max<std::uint64_t>(1, interval_ / 4);
  if (model.memory_bytes_per_s > 0) {
    const std::int32_t needed = (shape_.experts + shape_.ranks - 1) / shape_.ranks;
    copies_ns_ = (shape_.slots_per_rank() - needed) * model.bytes_per_copy * model.model_layers /
                 model.memory_bytes_per_s * 1e9;
  }
  end_epoch();
}

/// The next epoch's loads. The first call begins the first.
void ExpertGroup::end_epoch() {
  if (next_epoch_ > 0) mix_.advance();
  const auto span = static_cast<std::uint64_t>(side_.epoch_steps);
  next_epoch_ += span;
  const std::uint64_t keep = step_ > window_ ? step_ - window_ : 0;
  past_.push_back({step_, {mix_.weights().begin(), mix_.weights().end()}});
  while (past_.size() > 1 && past_[1].step <= keep) past_.erase(past_.begin());
  std::vector<double> popularity(static_cast<std::size_t>(shape_.experts));
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    mix_.shares(scenario_.experts.popularity, static_cast<std::int32_t>(layer), popularity);
    layers_[layer].set_popularity(popularity, epochs_ % kFreshEpochs == 0);
  }
  ++epochs_;
  forget_expected();
}

void ExpertGroup::forget_expected() {
  std::ranges::fill(expected_, kNone);
  std::ranges::fill(fresh_, kNone);
}

ExpertLoad ExpertGroup::step(double tokens) {
  ExpertLoad load;
  const double choices = tokens * scenario_.experts.per_token;
  double balance = 0;
  for (ExpertLayer& layer : layers_) balance += layer.draw(counts_, choices);
  load.balance = balance / static_cast<double>(layers_.size());
  load.avoidable = std::max(interpolated(tokens, false) - interpolated(tokens, true), 0.0);
  load.stall_ns = move_ ? move_->stall_ns : 0;
  ++step_;
  passed(tokens);
  return load;
}

ExpertLoad ExpertGroup::expected(double tokens) {
  ExpertLoad load;
  load.balance = interpolated(tokens, false);
  load.avoidable = std::max(load.balance - interpolated(tokens, true), 0.0);
  load.stall_ns = move_ ? move_->stall_ns : 0;
  return load;
}

std::uint64_t ExpertGroup::steps_to_change() const {
  std::uint64_t next = std::min(next_epoch_, next_plan_) - step_;
  if (move_) next = std::min(next, move_->steps_left);
  return next;
}

void ExpertGroup::advance(std::uint64_t steps, double tokens) {
  while (steps > 0) {
    const std::uint64_t span = std::min(steps, steps_to_change());
    steps -= span;
    step_ += span;
    if (move_) move_->steps_left -= span - 1;
    passed(tokens);
  }
}

/// After a step: what was under way ends, what is due begins.
void ExpertGroup::passed(double tokens) {
  if (move_ && --move_->steps_left == 0) {
    move_.reset();
    for (ExpertLayer& layer : layers_) layer.take();
    forget_expected();
  }
  if (step_ >= next_plan_) {
    // A plan starts from the map in force: it waits for moves that are under way.
    if (!move_) replan(tokens);
    next_plan_ = step_ + interval_;
  }
  if (step_ >= next_epoch_) end_epoch();
}

/// Counts of the last steps, [steps, experts], under the mixes that they had.
void ExpertGroup::draw_window(std::int32_t layer, double choices, std::vector<std::int64_t>& window) {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const std::uint64_t steps = std::min(window_, step_);
  std::vector<double> popularity(experts);
  window.resize(steps * experts);
  std::size_t past = 0;
  for (std::uint64_t s = 0; s < steps; ++s) {
    const std::uint64_t at = step_ - steps + s;
    const bool enters = s == 0 || (past + 1 < past_.size() && past_[past + 1].step <= at);
    while (past + 1 < past_.size() && past_[past + 1].step <= at) ++past;
    if (enters) mixed_shares(scenario_.experts.popularity, layer, past_[past].weights, popularity);
    for (std::size_t e = 0; e < experts; ++e)
      window[s * experts + e] = experts_eval::poisson(counts_, choices * popularity[e]);
  }
}

void ExpertGroup::replan(double tokens) {
  const model::ExpertModel& model = scenario_.experts;
  const double choices = tokens * model.per_token;
  std::vector<std::int64_t> window;
  double copies = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    if (model.policy == ExpertPolicy::kRepair && plans_ > 0) {
      if (!exact_) layers_[layer].observe(counts_, choices);
      window.clear();
    } else {
      draw_window(static_cast<std::int32_t>(layer), choices, window);
    }
    copies += static_cast<double>(layers_[layer].plan(window, interval_));
    received_ += layers_[layer].received();
  }
  ++plans_;
  // Layers move one after the other, and those simulated stand for all.
  const double stall = copies * model.model_layers / static_cast<double>(layers_.size()) *
                       model.bytes_per_copy / model.move_bytes_per_s * 1e9;
  if (stall <= 0) return;
  const double budget =
      model.policy == ExpertPolicy::kDeepInfer ? 0 : static_cast<double>(model.stall_us) * 1e3;
  const double parts = budget > 0 ? std::ceil(stall / budget) : 1;
  move_ = Move{static_cast<std::uint64_t>(parts), stall / parts};
}

ExpertPicture ExpertGroup::picture() const {
  const ExpertLayer& layer = layers_.front();
  const auto popularity = layer.popularity();
  return {static_cast<std::uint32_t>(shape_.ranks),
          plans_,
          {popularity.begin(), popularity.end()},
          layer.placed(true),
          layer.placed(false)};
}

double ExpertGroup::expected_at(int level, bool fresh) {
  std::vector<double>& known = fresh ? fresh_ : expected_;
  const auto index = static_cast<std::size_t>(level);
  if (known.size() <= index) known.resize(index + 1, kNone);
  if (std::isnan(known[index])) {
    const double tokens = std::ldexp(level % kLevelsPerOctave == 0 ? 1.0 : std::sqrt(2.0), level / 2);
    double sum = 0;
    for (const ExpertLayer& layer : layers_)
      sum += layer.expected(tokens * scenario_.experts.per_token, fresh);
    known[index] = sum / static_cast<double>(layers_.size());
  }
  return known[index];
}

/// Between two levels the peak is nearly linear in the relative noise, 1 / sqrt(tokens).
double ExpertGroup::interpolated(double tokens, bool fresh) {
  tokens = std::max(tokens, 1.0);
  const int octave = std::ilogb(tokens);
  const double scaled = std::ldexp(tokens, -octave), middle = std::sqrt(2.0);
  const bool upper = scaled >= middle;
  const int level = octave * kLevelsPerOctave + (upper ? 1 : 0);
  const double below = upper ? middle : 1.0, above = upper ? 2.0 : middle;
  const double noise = 1 / std::sqrt(scaled), most = 1 / std::sqrt(below), least = 1 / std::sqrt(above);
  const double part = (most - noise) / (most - least);
  const double low = expected_at(level, fresh), high = expected_at(level + 1, fresh);
  return low + part * (high - low);
}

}  // namespace trimtab::sim
