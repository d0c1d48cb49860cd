#include "engine/local_model.h"

#include <algorithm>
#include <numeric>

namespace trimtab::engine {

base::Result<std::unique_ptr<LocalModel>> LocalModel::open(const std::string& path, std::uint32_t ffn_experts,
                                                           std::uint32_t blocks, const Kernels* kernels,
                                                           KvFormat format) {
  if (kernels == nullptr) {
    auto best = best_kernels();
    if (!best) return tl::unexpected(best.error());
    kernels = *best;
  }
  auto weights = LlamaWeights::load(path);
  if (!weights) return tl::unexpected(weights.error());
  auto partition = ExpertPartition::make(weights->shape().ffn, ffn_experts);
  if (!partition) return tl::unexpected(partition.error());
  std::unique_ptr<LocalModel> model(new LocalModel(std::move(*weights)));
  auto arena = KvArena::create_private(model->shape(), blocks, format);
  if (!arena) return tl::unexpected(arena.error());
  model->arena_ = std::move(*arena);
  model->ring_.resize(static_cast<std::size_t>(kv::ring_bytes(model->shape().ring(format)).value));
  model->runner_ = std::make_unique<ExpertRunner>(*kernels, model->shape(), *partition);
  model->exchange_ = std::make_unique<LocalExchange>(*model->runner_);
  model->forward_ = std::make_unique<Forward>(model->weights_, *kernels, model->arena_, *model->exchange_);
  return model;
}

base::Status LocalModel::step(std::span<const Segment> segments) {
  std::size_t rows = 0;
  for (const Segment& segment : segments) rows += segment.tokens.size();
  return forward_->step(segments, Forward::waves_for(rows));
}

base::Result<std::vector<float>> LocalModel::run(std::span<const std::int32_t> tokens, std::size_t chunk) {
  TRIMTAB_CHECK(!tokens.empty() && chunk > 0);
  std::vector<std::uint32_t> blocks(arena_.blocks());
  std::iota(blocks.begin(), blocks.end(), 0U);
  for (std::size_t done = 0; done < tokens.size(); done += chunk) {
    Segment segment;
    segment.tokens = tokens.subspan(done, std::min(chunk, tokens.size() - done));
    segment.start = static_cast<std::int64_t>(done);
    segment.blocks = blocks;
    segment.window.ring = ring_;
    segment.wants_logits = done + chunk >= tokens.size();
    TRIMTAB_TRY(step({&segment, 1}));
  }
  const auto row = forward_->logits(0);
  return std::vector<float>(row.begin(), row.end());
}

}  // namespace trimtab::engine
