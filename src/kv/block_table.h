#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/ids.h"

namespace trimtab::kv {

using model::RequestId;

/// The KV blocks of one rank's arena, by number from 0 (block 0 is a block like the others: nothing here
/// needs a null block, since padding rows of an empty batch write nowhere). Reference counted: several
/// requests may share a block, and a transfer under way holds one too, so that a block is never given out
/// while something may still read or write it. The lowest free number goes first.
class BlockAllocator {
 public:
  explicit BlockAllocator(std::uint32_t blocks);

  /// `count` blocks with one reference each, or nothing at all.
  std::optional<std::vector<std::uint32_t>> allocate(std::uint32_t count);
  void retain(std::uint32_t block);
  /// True when that was the last reference and the block is free again.
  bool release(std::uint32_t block);

  std::uint32_t references(std::uint32_t block) const;
  bool writable(std::uint32_t block) const { return references(block) == 1; }
  std::uint32_t total() const { return static_cast<std::uint32_t>(references_.size()); }
  std::uint32_t free() const { return free_count_; }

 private:
  std::vector<std::uint32_t> references_;
  std::vector<std::uint64_t> free_bits_;  // 1 = free
  std::uint32_t free_count_;
  std::uint32_t first_word_ = 0;  // no free bit before this word
};

/// Blocks that `tokens` tokens need.
constexpr std::uint32_t blocks_for(std::int64_t tokens) {
  return static_cast<std::uint32_t>((tokens + model::kBlockTokens - 1) / model::kBlockTokens);
}

/// One block table per request. Token t of a request lies in block `table[t / 128]`, row `t % 128`.
class BlockTables {
 public:
  explicit BlockTables(std::uint32_t blocks) : allocator_(blocks) {}

  /// A new request with room for `tokens`; `shared` are the blocks of its first tokens, held by others too
  /// (they get one more reference). kResourceExhausted, and nothing taken, when the arena has too few.
  base::Status create(RequestId id, std::int64_t tokens, std::span<const std::uint32_t> shared = {});
  /// `child` shares the blocks of the first `tokens` tokens of `parent`, which must have them. Takes no
  /// block: whoever of the two writes to a shared one first copies it (`make_writable`).
  void fork(RequestId parent, RequestId child, std::int64_t tokens);
  /// Room for `tokens` in all. kResourceExhausted, and nothing taken, when the arena has too few.
  base::Status grow(RequestId id, std::int64_t tokens);
  /// Makes the block of token `position` the request's own before it is written: (old, new) when its content
  /// must be copied, nothing when it is its own already.
  struct Copy {
    std::uint32_t from = 0, to = 0;
  };
  base::Result<std::optional<Copy>> make_writable(RequestId id, std::int64_t position);
  /// Ends the request. Blocks that others hold (requests, transfers) stay.
  void free(RequestId id);

  bool contains(RequestId id) const { return tables_.contains(id); }
  std::span<const std::uint32_t> blocks(RequestId id) const;
  std::size_t size() const { return tables_.size(); }
  BlockAllocator& allocator() { return allocator_; }
  const BlockAllocator& allocator() const { return allocator_; }

 private:
  std::vector<std::uint32_t>& table(RequestId id);
  BlockAllocator allocator_;
  std::map<RequestId, std::vector<std::uint32_t>> tables_;
};

}  // namespace trimtab::kv
