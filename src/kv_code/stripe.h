#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kv_code/coder.h"
#include "model/ids.h"
#include "model/profile.h"

namespace trimtab::kv_code {

using model::BlockKey;

/// How a block of KV lies in its twelve shards. Data shard i carries slice i of every layer, one after the
/// other, so that a layer can be put together once that much of ten shards is there, long before the whole
/// block is (system facts, section 12). A slice is a tenth of its layer, rounded up to 16 bytes (0.4 % for
/// V4.1); the last one is filled up with zeros.
///
/// A shard is a header and the slices:
///   u32 magic "TKVS", u16 format 1, u8 shard, u8 layers, u64 key low, u64 key high, u64 bytes of the block,
///   u64 checksum of the block, u64 checksum of each slice, u64 checksum of the header up to here
/// all little-endian, checksums XXH3-64. The block's checksum tells apart two writings of one block: equal
/// keys mean equal tokens, but engines of different batches may compute other last bits, and shards of two
/// writings must never be mixed.
struct StripeLayout {
  struct Layer {
    std::size_t offset = 0, bytes = 0;              // in the block
    std::size_t slice_bytes = 0, slice_offset = 0;  // in the shard
  };
  std::vector<Layer> layers;
  std::size_t block_bytes = 0, header_bytes = 0, shard_bytes = 0;

  /// Errors: no bytes; more than 255 layers; layers that are longer than the block. Bytes after the last
  /// layer (padding of a page) ride with it; a layout without layers counts as one.
  static base::Result<StripeLayout> make(const model::KvLayout& kv);
};

using Shards = std::array<std::span<std::byte>, kShards>;

/// Writes all twelve, each of `layout.shard_bytes`. `block`: layout.block_bytes.
void write_shards(const StripeLayout& layout, BlockKey key, std::span<const std::byte> block,
                  const Shards& shards);

/// What keeps a shard from being used; it counts as missing and should be written again.
enum class ShardFault : std::uint8_t {
  kShort,    // ends before its header, or its slices, do
  kForeign,  // no shard of this format, of another block, or in another shard's place
  kCorrupt,  // a checksum does not match
};
std::string_view name(ShardFault fault);

/// Puts a block together from shards that arrive in pieces and in any order. Each slice is verified once,
/// when it is whole. Memory of the shards stays the caller's, who keeps it until the reader is gone.
class StripeReader {
 public:
  StripeReader(const StripeLayout& layout, BlockKey key);

  /// Slices of data shards of the layers from `from_layer` on are copied to their places in `block` as soon
  /// as they are verified, while caches hold them; `assemble` into these places then computes only what is
  /// missing. What lies there before is of no writing in particular.
  void place_into(std::span<std::byte> block, std::uint32_t from_layer);
  /// The first `bytes.size()` bytes of the shard are there; more may follow, in the same place.
  void arrived(std::uint32_t shard, std::span<const std::byte> bytes);
  /// No more will follow: a shard that is not whole is short.
  void ended(std::uint32_t shard);

  /// Leading layers that can be put together now.
  std::uint32_t layers_ready() const;
  /// Layer `layer` < layers_ready() into `out` (its bytes). Slices that are missing are computed.
  void assemble(std::uint32_t layer, std::span<std::byte> out, const Coder& with) const;
  /// All of them, and the whole block's checksum. kUnavailable: not enough shards yet, or ever.
  base::Status assemble_all(std::span<std::byte> out, const Coder& with) const;

  /// Writes the `wanted` shards, each of the layout's length, out of those that are here: what repairs a
  /// stripe without its block. Only when `complete`; none of the wanted may be a good one.
  void rebuild(ShardSet wanted, const Shards& out, const Coder& with) const;

  std::optional<ShardFault> fault(std::uint32_t shard) const { return states_[shard].fault; }
  /// Whether the block's bytes are those of the writing that was put together.
  bool matches(std::span<const std::byte> block) const;
  /// The same, where the slices that are here are taken from their shards, which caches may still hold, and
  /// only what was computed from the block.
  bool slices_match(std::span<const std::byte> block) const;
  /// Which writing that is: its block's checksum. 0 while no layer is ready.
  std::uint64_t writing() const { return choose().writing; }
  /// Whole shards of the writing that most have: ten are needed.
  std::uint32_t agreeing() const;
  /// They, shard by shard.
  ShardSet good() const;
  /// Shards that had something wrong, and those of a writing that did not win.
  ShardSet to_rewrite() const;
  bool complete() const { return layers_ready() == layout_->layers.size(); }

 private:
  struct State {
    std::span<const std::byte> bytes;
    bool header = false;
    std::uint32_t layers = 0;   // verified
    std::uint64_t writing = 0;  // checksum of the block
    std::optional<ShardFault> fault;
  };
  void read_header(std::uint32_t shard);
  /// Notes whose block it will be, once that is sure.
  void settle_writing();
  void place(std::uint32_t shard, std::uint32_t layer);
  /// Whether the slice, when it is here, lies in its place in the layer that begins at `layer`.
  bool placed(std::uint32_t shard, std::uint32_t l, const std::byte* layer) const;
  /// Shards of the writing that most have, with their least number of verified layers among the best ten.
  struct Choice {
    std::uint64_t writing = 0;
    std::uint32_t layers = 0;
  };
  Choice choose() const;
  std::uint64_t most_whole() const;

  const StripeLayout* layout_;
  BlockKey key_;
  std::array<State, kShards> states_;
  std::span<std::byte> into_;
  std::uint32_t place_from_ = 0;
  // Of twelve shards only one writing can have ten: from the first layer on that is ready, it is known which.
  std::optional<std::uint64_t> settled_;
};

}  // namespace trimtab::kv_code
