#include "kv/block_table.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"

namespace trimtab::kv {

BlockAllocator::BlockAllocator(std::uint32_t blocks)
    : references_(blocks, 0), free_bits_((blocks + 63) / 64, ~std::uint64_t{0}), free_count_(blocks) {
  if (blocks % 64 != 0) free_bits_.back() = (std::uint64_t{1} << (blocks % 64)) - 1;
}

std::optional<std::vector<std::uint32_t>> BlockAllocator::allocate(std::uint32_t count) {
  if (count > free_count_) return {};
  std::vector<std::uint32_t> blocks;
  blocks.reserve(count);
  while (blocks.size() < count) {
    std::uint64_t& word = free_bits_[first_word_];
    if (word == 0) {
      ++first_word_;
      continue;
    }
    const auto block = first_word_ * 64 + static_cast<std::uint32_t>(std::countr_zero(word));
    word &= word - 1;
    references_[block] = 1;
    blocks.push_back(block);
  }
  free_count_ -= count;
  return blocks;
}

void BlockAllocator::retain(std::uint32_t block) {
  TRIMTAB_CHECK(block < total() && references_[block] > 0, "a free block cannot be shared");
  ++references_[block];
}

bool BlockAllocator::release(std::uint32_t block) {
  TRIMTAB_CHECK(block < total() && references_[block] > 0, "a block is freed twice");
  if (--references_[block] > 0) return false;
  free_bits_[block / 64] |= std::uint64_t{1} << (block % 64);
  first_word_ = std::min(first_word_, block / 64);
  ++free_count_;
  return true;
}

std::uint32_t BlockAllocator::references(std::uint32_t block) const {
  TRIMTAB_CHECK(block < total(), "no such block");
  return references_[block];
}

namespace {

base::Status out_of_blocks(std::uint32_t needed, const BlockAllocator& allocator) {
  return base::fail(base::Code::kResourceExhausted,
                    "needs " + std::to_string(needed) + " KV blocks, " + std::to_string(allocator.free()) +
                        " of " + std::to_string(allocator.total()) + " are free",
                    "kv");
}

}  // namespace

std::vector<std::uint32_t>& BlockTables::table(RequestId id) {
  const auto found = tables_.find(id);
  TRIMTAB_CHECK(found != tables_.end(), "no block table for request " + std::to_string(id.value));
  return found->second;
}

base::Status BlockTables::create(RequestId id, std::int64_t tokens, std::span<const std::uint32_t> shared) {
  TRIMTAB_CHECK(!contains(id), "request " + std::to_string(id.value) + " has a block table already");
  const std::uint32_t needed = blocks_for(tokens);
  TRIMTAB_CHECK(shared.size() <= needed, "more shared blocks than the request has tokens");
  auto fresh = allocator_.allocate(needed - static_cast<std::uint32_t>(shared.size()));
  if (!fresh) return out_of_blocks(needed - static_cast<std::uint32_t>(shared.size()), allocator_);
  std::vector<std::uint32_t>& blocks = tables_[id];
  blocks.reserve(needed);
  for (const std::uint32_t block : shared) {
    allocator_.retain(block);
    blocks.push_back(block);
  }
  blocks.insert(blocks.end(), fresh->begin(), fresh->end());
  return {};
}

void BlockTables::fork(RequestId parent, RequestId child, std::int64_t tokens) {
  TRIMTAB_CHECK(!contains(child), "request " + std::to_string(child.value) + " has a block table already");
  const std::vector<std::uint32_t>& from = table(parent);
  const std::uint32_t shared = blocks_for(tokens);
  TRIMTAB_CHECK(tokens >= 0 && shared <= from.size(), "a fork beyond the parent's blocks");
  std::vector<std::uint32_t> blocks(from.begin(), from.begin() + shared);
  for (const std::uint32_t block : blocks) allocator_.retain(block);
  tables_[child] = std::move(blocks);
}

base::Status BlockTables::grow(RequestId id, std::int64_t tokens) {
  std::vector<std::uint32_t>& blocks = table(id);
  const std::uint32_t needed = blocks_for(tokens);
  if (needed <= blocks.size()) return {};
  const auto more = needed - static_cast<std::uint32_t>(blocks.size());
  auto fresh = allocator_.allocate(more);
  if (!fresh) return out_of_blocks(more, allocator_);
  blocks.insert(blocks.end(), fresh->begin(), fresh->end());
  return {};
}

base::Result<std::optional<BlockTables::Copy>> BlockTables::make_writable(RequestId id,
                                                                          std::int64_t position) {
  std::vector<std::uint32_t>& blocks = table(id);
  const auto index = static_cast<std::size_t>(position / model::kBlockTokens);
  TRIMTAB_CHECK(position >= 0 && index < blocks.size(), "the position is beyond the request's blocks");
  if (allocator_.writable(blocks[index])) return std::optional<Copy>{};
  auto fresh = allocator_.allocate(1);
  if (!fresh) return tl::unexpected(out_of_blocks(1, allocator_).error());
  const Copy copy{blocks[index], fresh->front()};
  allocator_.release(copy.from);
  blocks[index] = copy.to;
  return std::optional<Copy>{copy};
}

void BlockTables::free(RequestId id) {
  for (const std::uint32_t block : table(id)) allocator_.release(block);
  tables_.erase(id);
}

std::span<const std::uint32_t> BlockTables::blocks(RequestId id) const {
  const auto found = tables_.find(id);
  TRIMTAB_CHECK(found != tables_.end(), "no block table for request " + std::to_string(id.value));
  return found->second;
}

}  // namespace trimtab::kv
