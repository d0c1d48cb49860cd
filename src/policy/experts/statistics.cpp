#include "policy/experts/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace trimtab::experts {
namespace {

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts/statistics");
}

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

constexpr std::int32_t kWindowMax = 1 << 20;
constexpr std::int32_t kLayersMax = 1 << 16;

base::Status check_maps(const Shape& shape, std::int32_t layers, std::span<const std::int32_t> maps) {
  const auto width = at(shape.slots);
  if (maps.size() != width * at(layers)) {
    return bad(fmt::format("the maps have {} slots in all, not {} layers x {} slots", maps.size(), layers,
                           shape.slots));
  }
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (auto legal = check(shape, maps.subspan(at(layer) * width, width), false); !legal)
      return bad(fmt::format("layer {}: {}", layer, legal.error().message));
  }
  return {};
}

}  // namespace

StatisticsConfig preset(Phase phase, std::int32_t experts, std::int32_t ranks, std::int32_t layers) {
  const bool prefill = phase == Phase::kPrefill;
  StatisticsConfig config;
  config.shape.experts = experts;
  config.shape.ranks = ranks;
  // A shape that makes no sense is left for check() to name.
  if (experts > 0 && ranks > 0) {
    const std::int64_t redundant = std::int64_t{ranks} * (prefill ? 4 : 1);
    const std::int64_t slots = physical_slots(experts, redundant, ranks);
    // No rank can use more slots than there are experts.
    config.shape.slots = static_cast<std::int32_t>(std::min(
        {slots, std::int64_t{experts} * ranks, std::int64_t{std::numeric_limits<std::int32_t>::max()}}));
  }
  config.layers = layers;
  config.window_steps = prefill ? 100 : 1000;
  config.interval_steps = prefill ? 1000 : 10000;
  return config;
}

base::Status check(const StatisticsConfig& config) {
  TRIMTAB_TRY(check(config.shape));
  if (config.layers < 1 || config.layers > kLayersMax)
    return bad(fmt::format("{} layers: use 1 to {}", config.layers, kLayersMax));
  if (config.window_steps < 0)
    return bad(
        fmt::format("a window of {} steps: use 100 for prefill, 1000 for decode", config.window_steps));
  if (config.interval_steps < 0) {
    return bad(
        fmt::format("an interval of {} steps: use 0 to never re-place, or 1000 for prefill, 10000 for decode",
                    config.interval_steps));
  }
  if (config.interval_steps > 0 && config.window_steps == 0) {
    return bad(
        fmt::format("a window of 0 steps gives nothing to re-place by every {} steps: use 1 to {}, or an "
                    "interval of 0",
                    config.interval_steps, config.interval_steps));
  }
  if (config.interval_steps > 0 && config.window_steps > config.interval_steps) {
    return bad(
        fmt::format("a window of {} steps is longer than the interval of {}: use at most {}, or a longer "
                    "interval",
                    config.window_steps, config.interval_steps, config.interval_steps));
  }
  if (config.window_steps > kWindowMax)
    return bad(fmt::format("a window of {} steps is more than {}", config.window_steps, kWindowMax));
  if (config.local_rank < -1 || config.local_rank >= config.shape.ranks) {
    return bad(fmt::format("local rank {} is not one of 0 to {}, nor -1 for all", config.local_rank,
                           config.shape.ranks - 1));
  }
  if (const std::int64_t bytes = Statistics::memory_bytes(config); bytes > config.memory_bytes_max) {
    return base::fail(
        base::Code::kResourceExhausted,
        fmt::format("the ring would take {} bytes, more than the {} allowed: use a shorter window than "
                    "{} steps, or allow more",
                    bytes, config.memory_bytes_max, config.window_steps),
        "policy/experts/statistics");
  }
  return {};
}

base::Status count_tokens(const Shape& shape, std::int32_t rank, std::span<const std::int32_t> ids,
                          std::int32_t top_k, std::int32_t valid_tokens, std::span<std::int32_t> counts) {
  TRIMTAB_TRY(check(shape));
  const std::int32_t width = shape.slots_per_rank();
  if (rank < 0 || rank >= shape.ranks)
    return bad(fmt::format("rank {} is not one of 0 to {}", rank, shape.ranks - 1));
  if (top_k < 1 || ids.size() % at(top_k) != 0)
    return bad(fmt::format("{} ids are not rows of top_k {}", ids.size(), top_k));
  if (valid_tokens < 0 || at(valid_tokens) > ids.size() / at(top_k)) {
    return bad(fmt::format("{} valid tokens, but the batch has {}", valid_tokens, ids.size() / at(top_k)));
  }
  if (counts.size() != at(width))
    return bad(fmt::format("{} counters for a rank of {} slots", counts.size(), width));
  const auto real = ids.first(at(valid_tokens) * at(top_k));
  for (std::size_t i = 0; i < real.size(); ++i) {
    if (real[i] < -1 || real[i] >= shape.slots) {
      return bad(fmt::format("token {} goes to slot {}, which is not one of 0 to {} (nor -1, masked)",
                             i / at(top_k), real[i], shape.slots - 1));
    }
  }
  for (const std::int32_t slot : real) {
    if (slot < 0 || shape.rank_of_slot(slot) != rank) continue;
    std::int32_t& count = counts[at(slot - rank * width)];
    if (count == std::numeric_limits<std::int32_t>::max())
      return bad(fmt::format("the 32-bit counter of slot {} is full: clear it after each step", slot));
    ++count;
  }
  return {};
}

base::Result<Statistics> Statistics::make(const StatisticsConfig& config,
                                          std::span<const std::int32_t> maps) {
  TRIMTAB_TRY(check(config));
  TRIMTAB_TRY(check_maps(config.shape, config.layers, maps));
  Statistics out;
  out.config_ = config;
  out.maps_.assign(maps.begin(), maps.end());
  const std::size_t rows = at(config.window_steps) + 1;
  out.ring_.resize(rows * out.row());
  out.rank_loads_.resize(rows * at(config.layers));
  out.reported_.resize(at(config.shape.ranks));
  out.next_due_ = std::max<std::int64_t>(1, config.interval_steps / 4);
  return out;
}

std::size_t Statistics::row() const { return at(config_.layers) * at(config_.shape.experts); }

std::int64_t Statistics::memory_bytes(const StatisticsConfig& config) {
  const std::int64_t rows = std::int64_t{config.window_steps} + 1;
  const std::int64_t layers = config.layers;
  // With at most 2^20 steps, 2^16 layers and 2^20 slots the product can pass 2^63: saturate instead.
  const auto exact = static_cast<__int128>(rows) * layers * (std::int64_t{config.shape.experts} + 2) * 8 +
                     static_cast<__int128>(layers) * config.shape.slots * 4 + config.shape.ranks;
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  return exact > kMax ? kMax : static_cast<std::int64_t>(exact);
}

base::Status Statistics::set_map(std::int32_t layer, std::span<const std::int32_t> map) {
  if (layer < 0 || layer >= config_.layers)
    return bad(fmt::format("layer {} is not one of 0 to {}", layer, config_.layers - 1));
  if (reports_ > 0) {
    return bad(
        fmt::format("{} ranks reported the open step under the old map of layer {}: end the step first",
                    reports_, layer));
  }
  TRIMTAB_TRY(check(config_.shape, map, false));
  std::ranges::copy(map, maps_.begin() + layer * std::ptrdiff_t{config_.shape.slots});
  return {};
}

base::Status Statistics::reshape(const Shape& shape, std::span<const std::int32_t> maps) {
  if (reports_ > 0)
    return bad(fmt::format("{} ranks reported the open step: end it before ranks change", reports_));
  if (shape.experts != config_.shape.experts) {
    return bad(fmt::format("{} experts, but the window counts {}: a model's experts do not change",
                           shape.experts, config_.shape.experts));
  }
  StatisticsConfig config = config_;
  config.shape = shape;
  TRIMTAB_TRY(check(config));
  TRIMTAB_TRY(check_maps(shape, config.layers, maps));
  config_ = config;
  maps_.assign(maps.begin(), maps.end());
  reported_.assign(at(shape.ranks), false);
  // What ranks carried is measured anew: it was of other ranks.
  std::fill(rank_loads_.begin(), rank_loads_.end(), RankLoad{});
  return {};
}

base::Status Statistics::add(std::int32_t rank, std::span<const std::int32_t> counts,
                             std::span<const std::int32_t> padding) {
  const Shape& shape = config_.shape;
  const std::size_t size = at(config_.layers) * at(shape.slots_per_rank());
  if (rank < 0 || rank >= shape.ranks)
    return bad(fmt::format("rank {} is not one of 0 to {}", rank, shape.ranks - 1));
  if (config_.local_rank >= 0 && rank != config_.local_rank)
    return bad(fmt::format("rank {} reports to the statistics of rank {}", rank, config_.local_rank));
  if (reported_[at(rank)])
    return bad(fmt::format("rank {} reports step {} twice: end the step first", rank, counted_ + ignored_));
  if (counts.size() != size || (!padding.empty() && padding.size() != size)) {
    return bad(fmt::format("rank {} reports {} counts and {} of padding, not {} layers x {} slots", rank,
                           counts.size(), padding.size(), config_.layers, shape.slots_per_rank()));
  }
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t off = padding.empty() ? 0 : padding[i];
    if (counts[i] < 0 || off < 0 || off > counts[i]) {
      return bad(fmt::format("rank {}, layer {}, slot {}: {} tokens of which {} are padding: {}", rank,
                             i / at(shape.slots_per_rank()), i % at(shape.slots_per_rank()), counts[i], off,
                             counts[i] < 0 ? "the 32-bit counter wrapped; clear it after each step"
                                           : "padding is a part of the tokens counted"));
    }
  }
  fold(rank, counts, padding);
  reported_[at(rank)] = true;
  ++reports_;
  return {};
}

void Statistics::fold(std::int32_t rank, std::span<const std::int32_t> counts,
                      std::span<const std::int32_t> padding) {
  const std::int32_t width = config_.shape.slots_per_rank();
  std::int64_t* row_of = ring_.data() + at(open_) * row();
  for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
    const std::int32_t* map = maps_.data() + std::int64_t{layer} * config_.shape.slots + rank * width;
    const std::size_t first = at(layer) * at(width);
    std::int64_t* experts = row_of + at(layer) * at(config_.shape.experts);
    std::int64_t total = 0;
    for (std::int32_t i = 0; i < width; ++i) {
      const std::int64_t off = padding.empty() ? 0 : padding[first + at(i)];
      const std::int64_t tokens = counts[first + at(i)] - off;
      experts[map[i]] += tokens;
      total += tokens;
    }
    RankLoad& load = rank_loads_[at(open_) * at(config_.layers) + at(layer)];
    load.busiest_tokens = std::max(load.busiest_tokens, total);
    load.total_tokens += total;
  }
}

void Statistics::clear_open() {
  const auto first = ring_.begin() + static_cast<std::ptrdiff_t>(at(open_) * row());
  std::fill(first, first + static_cast<std::ptrdiff_t>(row()), 0);
  const auto load = rank_loads_.begin() + std::ptrdiff_t{open_} * config_.layers;
  std::fill(load, load + config_.layers, RankLoad{});
  std::fill(reported_.begin(), reported_.end(), false);
  reports_ = 0;
}

StepOutcome Statistics::end_step(StepUse use) {
  if (use == StepUse::kIgnore) {
    ++ignored_;
    clear_open();
    return StepOutcome::kIgnored;
  }
  ++counted_;
  if (reports_ < (config_.local_rank >= 0 ? 1 : config_.shape.ranks)) {
    ++incomplete_;
    clear_open();
    return StepOutcome::kIncomplete;
  }
  open_ = (open_ + 1) % (config_.window_steps + 1);
  held_ = std::min(held_ + 1, config_.window_steps);
  clear_open();
  return StepOutcome::kRecorded;
}

bool Statistics::due() const { return config_.interval_steps > 0 && counted_ >= next_due_; }

std::int64_t Statistics::overdue_steps() const {
  return config_.interval_steps > 0 ? std::max<std::int64_t>(0, counted_ - next_due_) : 0;
}

void Statistics::restart_interval() { next_due_ = counted_ + config_.interval_steps; }

std::vector<std::int64_t> Statistics::window(std::int32_t layer) const {
  TRIMTAB_CHECK(layer >= 0 && layer < config_.layers);
  const std::size_t experts = at(config_.shape.experts);
  const std::int32_t rows = config_.window_steps + 1;
  std::vector<std::int64_t> out(at(held_) * experts);
  for (std::int32_t step = 0; step < held_; ++step) {
    const std::int32_t source = (open_ - held_ + step + rows) % rows;
    const auto first = ring_.begin() + static_cast<std::ptrdiff_t>(at(source) * row() + at(layer) * experts);
    std::copy(first, first + static_cast<std::ptrdiff_t>(experts),
              out.begin() + static_cast<std::ptrdiff_t>(at(step) * experts));
  }
  return out;
}

std::vector<std::int64_t> Statistics::windows() const {
  const std::int32_t rows = config_.window_steps + 1;
  std::vector<std::int64_t> out;
  out.reserve(at(held_) * row());
  for (std::int32_t step = 0; step < held_; ++step) {
    const std::int32_t source = (open_ - held_ + step + rows) % rows;
    const auto first = ring_.begin() + static_cast<std::ptrdiff_t>(at(source) * row());
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(row()));
  }
  return out;
}

base::Result<LoadWindow> Statistics::load_window(std::int32_t layer) const {
  if (layer < 0 || layer >= config_.layers)
    return bad(fmt::format("layer {} is not one of 0 to {}", layer, config_.layers - 1));
  return LoadWindow::make(window(layer).data(), held_, config_.shape.experts, config_.shape.experts);
}

Statistics::RankLoad Statistics::rank_load(std::int32_t layer, std::int32_t age) const {
  TRIMTAB_CHECK(layer >= 0 && layer < config_.layers && age >= 0 && age < held_);
  if (config_.local_rank >= 0) return {};
  const std::int32_t rows = config_.window_steps + 1;
  const std::int32_t source = (open_ - 1 - age + 2 * rows) % rows;
  return rank_loads_[at(source) * at(config_.layers) + at(layer)];
}

double Statistics::measured_balance(std::int32_t steps) const {
  std::int64_t busiest = 0, total = 0;
  for (std::int32_t age = 0; age < std::min(steps, held_); ++age) {
    for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
      const RankLoad load = rank_load(layer, age);
      busiest += load.busiest_tokens;
      total += load.total_tokens;
    }
  }
  if (total == 0) return 1;
  return static_cast<double>(busiest) * config_.shape.ranks / static_cast<double>(total);
}

}  // namespace trimtab::experts
