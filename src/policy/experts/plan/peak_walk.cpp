#include "policy/experts/plan/peak_walk.h"

#include <algorithm>

#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {
namespace {

constexpr std::int32_t kBlock = LoadWindow::kLanes;

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

}  // namespace

void PeakWalk::start(const Shape& shape, const LayerLoads& loads, const SlotMap& map) {
  shape_ = shape;
  steps_ = loads.steps;
  padded_ = loads.steps_padded;
  map_ = map;
  const std::vector<std::int32_t> copies = copies_of(shape, map);
  loads_.assign(loads.by_expert.size(), 0.0F);
  for (std::int32_t expert = 0; expert < shape.experts; ++expert)
    kernels().add_scaled(loads_.data() + line(expert), loads.of(expert).data(),
                         1.0F / static_cast<float>(copies[at(expert)]), padded_);
  ranks_.assign(at(shape.ranks) * at(padded_), 0.0F);
  held_.assign(at(shape.ranks) * at(shape.experts), 0);
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::int32_t rank = shape.rank_of_slot(slot);
    kernels().add_scaled(rank_load(rank), load_of(map[at(slot)]), 1.0F, padded_);
    hold(rank, map[at(slot)], true);
  }
  best_.resize(3 * at(padded_));
  who_.resize(3 * at(padded_));
  rest_.resize(at(padded_ / kBlock) + 1);
  measure();
}

void PeakWalk::measure() {
  kernels().top_three(ranks_.data(), shape_.ranks, padded_, best_.data(), who_.data());
  // With the loads' own kernel, so that equal plans give equal sums: rank -1 is nobody.
  sum_ = kernels().peaks_after_swap(best_.data(), best_.data(), best_.data(), best_.data(), best_.data(),
                                    who_.data(), -1, -1, rest_.data(), __builtin_inff(), padded_);
  const float* third = best_.data() + 2 * at(padded_);
  rest_.back() = 0;
  for (std::size_t block = rest_.size() - 1; block > 0; --block) {
    float sum = 0;
    for (std::size_t step = (block - 1) * kBlock; step < block * kBlock; ++step)
      sum += std::max(0.0F, third[step]);
    // A little less, so that rounding never makes it more than the true sum.
    rest_[block - 1] = rest_[block] + sum * 0.9999F;
  }
}

bool PeakWalk::propose(base::Prng& prng) {
  const std::uint64_t drawn = prng.next();
  // One draw for all four choices: 16 bits each are even enough for a search.
  const auto pick = [&](int shift, std::int32_t count) {
    return static_cast<std::int32_t>(((drawn >> shift & 0xFFFF) * static_cast<std::uint64_t>(count)) >> 16);
  };
  const std::int32_t step = pick(0, steps_), width = shape_.slots_per_rank();
  const std::int32_t i = who_[at(step)];
  std::int32_t j = pick(16, shape_.ranks - 1);
  if (j >= i) ++j;
  const std::int32_t slot_a = i * width + pick(32, width), slot_b = j * width + pick(48, width);
  const std::int32_t a = map_[at(slot_a)], b = map_[at(slot_b)];
  if (holds(j, a) || holds(i, b) || load_of(a)[step] <= load_of(b)[step]) return false;
  const float limit = sum_ * (1 - 1e-6F);
  const float sum = kernels().peaks_after_swap(rank_load(i), rank_load(j), load_of(a), load_of(b),
                                               best_.data(), who_.data(), i, j, rest_.data(), limit, padded_);
  if (!(sum < limit)) return false;
  kernels().add_scaled(rank_load(i), load_of(a), -1.0F, padded_);
  kernels().add_scaled(rank_load(i), load_of(b), 1.0F, padded_);
  kernels().add_scaled(rank_load(j), load_of(b), -1.0F, padded_);
  kernels().add_scaled(rank_load(j), load_of(a), 1.0F, padded_);
  hold(i, a, false), hold(i, b, true), hold(j, b, false), hold(j, a, true);
  std::swap(map_[at(slot_a)], map_[at(slot_b)]);
  measure();
  return true;
}

float PeakWalk::sum_of_peaks(const Shape& shape, const LayerLoads& loads, const SlotMap& map) {
  start(shape, loads, map);
  return sum_;
}

std::int64_t PeakWalk::run(const Shape& shape, const LayerLoads& loads, std::int64_t proposals,
                           std::uint64_t seed, SlotMap& map) {
  if (shape.ranks < 2 || proposals == 0) return 0;
  start(shape, loads, map);
  base::Prng prng(seed);
  std::int64_t kept = 0;
  for (std::int64_t n = 0; n < proposals; ++n) kept += propose(prng) ? 1 : 0;
  map = map_;
  return kept;
}

}  // namespace trimtab::experts
