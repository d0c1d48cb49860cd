#include "engine/hit_swap.h"

#include <algorithm>

#include "base/check.h"
#include "ipc/steady_clock.h"

namespace trimtab::engine {

std::optional<HitLayout> HitLayout::make(const model::KvLayout& kv, const LlamaShape& shape,
                                         std::size_t block_bytes) {
  if (kv.layer_bytes.size() < 2 || kv.block_bytes.value != static_cast<std::int64_t>(block_bytes))
    return std::nullopt;
  HitLayout layout;
  std::size_t offset = 0;
  for (const base::Bytes bytes : kv.layer_bytes) {
    layout.spans.push_back({offset, static_cast<std::size_t>(bytes.value)});
    offset += layout.spans.back().bytes;
  }
  if (offset > block_bytes) return std::nullopt;
  layout.spans.back().bytes += block_bytes - offset;  // what pads the block is hashed with it
  const std::size_t of_model = block_bytes / shape.full_layers();
  std::uint32_t span = 0;
  for (std::size_t layer = 0; layer < shape.full_layers(); ++layer) {
    while (layout.spans[span].offset + layout.spans[span].bytes < (layer + 1) * of_model) ++span;
    layout.needed.push_back(span);
  }
  // Verified with the last span: no step ends before it.
  layout.needed.back() = static_cast<std::uint32_t>(layout.spans.size()) - 1;
  return layout;
}

bool HitSwap::begun() const { return gate_->open_layers() > layout_.needed.front() && !gate_->failed(); }

policy::SwapOutcome HitSwap::predict(base::Nanos now, base::Nanos compute) const {
  const std::uint32_t open = gate_->open_layers();
  const double waited = std::max(1.0, static_cast<double>((now - asked_).value));
  double came = 0;
  for (std::uint32_t i = 0; i < open; ++i) came += static_cast<double>(layout_.spans[i].bytes);
  std::vector<policy::SwapLayer> layers(layout_.spans.size());
  double behind = 0;
  for (std::uint32_t i = 0; i < layers.size(); ++i) {
    policy::SwapLayer& layer = layers[i];
    layer.compute_ns = static_cast<double>(compute.value) / static_cast<double>(layers.size());
    if (i < open) continue;
    behind += static_cast<double>(layout_.spans[i].bytes);
    layer.copies = blocks_;
    layer.bytes = std::uint64_t{blocks_} * layout_.spans[i].bytes;
    layer.ready_ns = came > 0 ? waited * behind / came : waited;
  }
  return policy::play_swap(cost_, batch_, layers);
}

bool HitSwap::await(std::size_t layer) {
  const std::uint32_t span = layout_.needed[layer];
  if (gate_->open_layers() > span) return true;
  TRIMTAB_CHECK(left_ != nullptr, "a step says how long it may wait");
  const ipc::SteadyClock clock;
  const base::Nanos began = clock.now();
  const base::Status there = gate_->wait(span, *left_);
  *left_ = std::max(base::Nanos{0}, *left_ - (clock.now() - began));
  return there.has_value();
}

}  // namespace trimtab::engine
