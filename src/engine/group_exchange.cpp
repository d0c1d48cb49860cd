#include "engine/group_exchange.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/compute_clock.h"

namespace trimtab::engine {

void GroupExchange::begin_step(std::span<const std::size_t> rows_of_ranks, std::size_t waves) {
  TRIMTAB_CHECK(rows_of_ranks.size() == group_.shape().ranks);
  rows_of_ranks_.assign(rows_of_ranks.begin(), rows_of_ranks.end());
  waves_ = waves;
  calls_ = 0;
}

base::Status GroupExchange::run(const LayerWeights& layer, const float* x, std::size_t rows,
                                float* residual) {
  const std::size_t hidden = runner_.shape().hidden;
  const std::uint32_t ranks = group_.shape().ranks, rank = group_.rank();
  const std::size_t before = calls_++ % waves_ * kWaveRows;
  std::size_t total = 0, mine = 0;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r == rank) mine = total;
    total += std::min(kWaveRows, rows_of_ranks_[r] - std::min(before, rows_of_ranks_[r]));
  }
  if (rows > 0) std::memcpy(group_.inputs() + mine * hidden, x, rows * hidden * sizeof(float));
  TRIMTAB_TRY(group_.barrier());
  const ExpertPartition& partition = runner_.partition();
  const std::uint32_t first = partition.rank_first(rank, ranks), last = partition.rank_last(rank, ranks);
  const base::Nanos began = compute_now();
  for (std::uint32_t e = first; e < last; ++e)
    runner_.run(layer, e, group_.inputs(), total, group_.outputs(e));
  if (last > first && total > 0) {
    const auto share = static_cast<std::int64_t>(rows * partition.experts());
    const auto done = static_cast<std::int64_t>(total * (last - first));
    compute_ += base::Nanos{(compute_now() - began).value * share / done};
  }
  TRIMTAB_TRY(group_.barrier());
  for (std::uint32_t e = 0; e < partition.experts(); ++e)
    runner_.kernels().add(residual, group_.outputs(e) + mine * hidden, rows * hidden);
  return {};
}

}  // namespace trimtab::engine
