#include "engine/feed_forward.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/compute_clock.h"

namespace trimtab::engine {

base::Result<ExpertPartition> ExpertPartition::make(std::size_t ffn, std::uint32_t experts) {
  ExpertPartition partition;
  partition.blocks_ = ffn / 32;
  partition.experts_ = experts;
  if (experts == 0 || experts > partition.blocks_) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("[engine] ffn_experts = {}: the model's {} feed-forward neurons can be cut "
                                  "into 1 to {} parts",
                                  experts, ffn, partition.blocks_),
                      "engine");
  }
  return partition;
}

void ExpertRunner::run(const LayerWeights& layer, std::uint32_t expert, const float* x, std::size_t rows,
                       float* out) {
  const std::size_t first = partition_.first(expert), last = partition_.last(expert);
  const std::size_t neurons = last - first;
  float* gate = gate_.ensure(kWaveRows * neurons);
  float* up = up_.ensure(kWaveRows * neurons);
  float* scratch = scratch_.ensure(matmul_scratch_floats(std::max(shape_.hidden, neurons)));
  const Matrix down = layer.down.column_slice(first, last);
  // A group's rows may be more than a wave's: pieces bound the scratch, and no bit depends on them.
  for (std::size_t done = 0; done < rows; done += kWaveRows) {
    const std::size_t piece = std::min(kWaveRows, rows - done);
    const float* input = x + done * shape_.hidden;
    kernels_.matmul(layer.gate.row_slice(first, last), input, shape_.hidden, piece, gate, neurons, scratch);
    kernels_.matmul(layer.up.row_slice(first, last), input, shape_.hidden, piece, up, neurons, scratch);
    kernels_.silu_multiply(gate, up, gate, piece * neurons);
    kernels_.matmul(down, gate, neurons, piece, out + done * shape_.hidden, shape_.hidden, scratch);
  }
}

base::Status LocalExchange::run(const LayerWeights& layer, const float* x, std::size_t rows,
                                float* residual) {
  const std::size_t hidden = runner_.shape().hidden;
  float* out = out_.ensure(kWaveRows * hidden);
  const base::Nanos before = compute_now();
  for (std::uint32_t e = 0; e < runner_.partition().experts(); ++e) {
    runner_.run(layer, e, x, rows, out);
    runner_.kernels().add(residual, out, rows * hidden);
  }
  compute_ += compute_now() - before;
  return {};
}

}  // namespace trimtab::engine
