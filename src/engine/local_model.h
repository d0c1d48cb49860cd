#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/forward.h"

namespace trimtab::engine {

/// The model in one process, without ranks or requests: for calibration, tools and proofs.
class LocalModel {
 public:
  /// Room for `blocks` KV blocks. Without `kernels`, the machine's best.
  static base::Result<std::unique_ptr<LocalModel>> open(const std::string& path, std::uint32_t ffn_experts,
                                                        std::uint32_t blocks,
                                                        const Kernels* kernels = nullptr,
                                                        KvFormat format = KvFormat::kF16);

  base::Status step(std::span<const Segment> segments);
  /// The logits of the last token, the prompt computed in steps of `chunk` tokens into the first blocks.
  base::Result<std::vector<float>> run(std::span<const std::int32_t> tokens, std::size_t chunk = 512);

  Forward& forward() { return *forward_; }
  const LlamaWeights& weights() const { return weights_; }
  const LlamaShape& shape() const { return weights_.shape(); }
  const KvArena& arena() const { return arena_; }
  /// The one sequence's state slot that `run` uses; empty for models without a window.
  std::span<std::byte> ring() { return ring_; }

 private:
  explicit LocalModel(LlamaWeights weights) : weights_(std::move(weights)) {}

  LlamaWeights weights_;
  KvArena arena_;
  std::vector<std::byte> ring_;
  std::unique_ptr<ExpertRunner> runner_;
  std::unique_ptr<LocalExchange> exchange_;
  std::unique_ptr<Forward> forward_;
};

}  // namespace trimtab::engine
