#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "engine/llama_weights.h"
#include "ipc/segment.h"

namespace trimtab::engine {

/// The KV memory of one rank: `blocks` blocks of 128 tokens, each [layer][KV head][keys 64 x 128 | values
/// 128 x 64], in f16 unless asked otherwise. Keys are stored with the tokens side by side, so that
/// attention's lanes are tokens and no score needs a reduction over lanes. A block is one piece of memory: it
/// moves to the pool or to a decode rank by one copy. The segment is shared, so that a prefill rank writes
/// straight into a decode rank's blocks.
class KvArena {
 public:
  static base::Result<KvArena> create(const std::string& path, const LlamaShape& shape, std::uint32_t blocks,
                                      KvFormat format = KvFormat::kF16);
  /// Memory of this process alone: the file is gone as soon as it is mapped.
  static base::Result<KvArena> create_private(const LlamaShape& shape, std::uint32_t blocks,
                                              KvFormat format = KvFormat::kF16);
  /// Another rank's arena. kDataLoss when its size is no whole number of this model's blocks.
  static base::Result<KvArena> open(const std::string& path, const LlamaShape& shape);

  std::span<std::byte> block(std::uint32_t number) const {
    TRIMTAB_CHECK(number < blocks_, "block " + std::to_string(number) + " of " + std::to_string(blocks_));
    return segment_.bytes().subspan(number * block_bytes_, block_bytes_);
  }
  /// [64 elements][128 tokens].
  std::byte* keys(std::uint32_t number, std::size_t layer, std::size_t head) const {
    return block(number).data() + (layer * kv_heads_ + head) * 2 * half_bytes();
  }
  /// [128 tokens][64 elements].
  std::byte* values(std::uint32_t number, std::size_t layer, std::size_t head) const {
    return keys(number, layer, head) + half_bytes();
  }
  KvFormat format() const { return format_; }
  std::uint32_t blocks() const { return blocks_; }
  std::size_t block_bytes() const { return block_bytes_; }
  const std::string& path() const { return segment_.path(); }

 private:
  std::size_t half_bytes() const { return kHeadElements * kAttentionBlock * element_bytes(format_); }

  ipc::Segment segment_;
  KvFormat format_ = KvFormat::kF16;
  std::size_t block_bytes_ = 0, kv_heads_ = 0;
  std::uint32_t blocks_ = 0;
};

}  // namespace trimtab::engine
