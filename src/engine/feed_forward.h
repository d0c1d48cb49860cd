#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "engine/kernels.h"
#include "engine/llama_weights.h"

namespace trimtab::engine {

/// The feed-forward neurons cut into `experts` fixed parts (whole blocks of 32 neurons, as even as they go).
/// The parts depend on the model alone; how many ranks carry them changes no bit, because their outputs are
/// always added in id order.
class ExpertPartition {
 public:
  /// kInvalidArgument when there are no experts or more than blocks of 32 neurons.
  static base::Result<ExpertPartition> make(std::size_t ffn, std::uint32_t experts);

  std::uint32_t experts() const { return experts_; }
  /// Neurons [first, last) of an expert.
  std::size_t first(std::uint32_t expert) const { return blocks_ * expert / experts_ * 32; }
  std::size_t last(std::uint32_t expert) const { return first(expert + 1); }
  /// Experts [first, last) of a rank; a rank beyond the experts has none.
  std::uint32_t rank_first(std::uint32_t rank, std::uint32_t ranks) const { return experts_ * rank / ranks; }
  std::uint32_t rank_last(std::uint32_t rank, std::uint32_t ranks) const {
    return rank_first(rank + 1, ranks);
  }

 private:
  std::size_t blocks_ = 0;
  std::uint32_t experts_ = 1;
};

/// One expert over rows of normalised hidden states: down(silu(gate x) * up x) over its own neurons.
class ExpertRunner {
 public:
  ExpertRunner(const Kernels& kernels, const LlamaShape& shape, ExpertPartition partition)
      : kernels_(kernels), shape_(shape), partition_(partition) {}

  /// out [rows][hidden] from x [rows][hidden].
  void run(const LayerWeights& layer, std::uint32_t expert, const float* x, std::size_t rows, float* out);
  const ExpertPartition& partition() const { return partition_; }
  const Kernels& kernels() const { return kernels_; }
  const LlamaShape& shape() const { return shape_; }

 private:
  const Kernels& kernels_;
  LlamaShape shape_;
  ExpertPartition partition_;
  AlignedFloats gate_, up_, scratch_;
};

/// How the rows of a step meet the experts: alone, or across a group.
class FfnExchange {
 public:
  virtual ~FfnExchange() = default;
  /// Adds the feed-forward of `x` [rows][hidden] (normalised) to `residual` [rows][hidden], experts in id
  /// order. Every rank of a group calls it for every layer and wave, with no rows too. rows <=
  /// kWaveRows. kUnavailable when a peer of the group is gone.
  virtual base::Status run(const LayerWeights& layer, const float* x, std::size_t rows, float* residual) = 0;
  /// Compute time (of the processor, not of the wall) that this rank's rows took since the last call, whoever
  /// spent it: experts are shared, so it is counted by rows.
  base::Nanos take_compute() { return std::exchange(compute_, base::Nanos{}); }

 protected:
  base::Nanos compute_;
};

/// Rows that pass a layer at a time: bounds the group's shared buffers and keeps activations in the caches. A
/// step of more rows goes in waves.
inline constexpr std::size_t kWaveRows = 256;

/// All experts in this process.
class LocalExchange final : public FfnExchange {
 public:
  explicit LocalExchange(ExpertRunner& runner) : runner_(runner) {}
  base::Status run(const LayerWeights& layer, const float* x, std::size_t rows, float* residual) override;

 private:
  ExpertRunner& runner_;
  AlignedFloats out_;
};

}  // namespace trimtab::engine
