#include "kv/prefix_index.h"

#include <bit>

#include "base/check.h"

namespace trimtab::kv {

PrefixIndex::PrefixIndex(std::uint32_t capacity, std::uint64_t first_epoch)
    : capacity_(capacity), epoch_(first_epoch) {
  TRIMTAB_CHECK(capacity > 0 && capacity < (1U << 30), "an index holds 1 to 2^30 - 1 keys");
  // At most half full, so that runs of taken cells stay short.
  cells_.assign(std::bit_ceil(capacity * 2U), kSentinel);
  mask_ = static_cast<std::uint32_t>(cells_.size()) - 1;
  nodes_.emplace_back();
}

std::uint32_t PrefixIndex::cell_of(BlockKey key) const {
  std::uint32_t cell = home(key);
  while (cells_[cell] != kSentinel && nodes_[cells_[cell]].entry.key != key) cell = (cell + 1) & mask_;
  return cell;
}

std::optional<PrefixIndex::Entry> PrefixIndex::find(BlockKey key) const {
  const std::uint32_t node = node_of(key);
  if (node == kSentinel) return {};
  return nodes_[node].entry;
}

std::uint32_t PrefixIndex::longest_prefix(std::span<const BlockKey> keys) const {
  std::uint32_t present = 0;
  for (const BlockKey key : keys) {
    if (node_of(key) == kSentinel) break;
    ++present;
  }
  return present;
}

bool PrefixIndex::insert(BlockKey key, std::uint32_t value, std::optional<BlockKey> parent) {
  const std::uint32_t cell = cell_of(key);
  if (cells_[cell] != kSentinel || full()) return false;
  std::uint32_t node = 0;
  if (free_.empty()) {
    node = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    node = free_.back();
    free_.pop_back();
  }
  nodes_[node].entry = {key, value, ++epoch_};
  cells_[cell] = node;
  ++size_;
  // Older than the sentinel means youngest of all.
  const std::uint32_t younger = parent && *parent != key ? node_of(*parent) : kSentinel;
  link_older_than(node, younger);
  return true;
}

bool PrefixIndex::erase(BlockKey key) {
  const std::uint32_t cell = cell_of(key);
  const std::uint32_t node = cells_[cell];
  if (node == kSentinel) return false;
  unlink(node);
  free_.push_back(node);
  empty_cell(cell);
  --size_;
  ++epoch_;
  return true;
}

bool PrefixIndex::withdraw(BlockKey key, std::uint64_t seen_epoch) {
  const std::uint32_t node = node_of(key);
  if (node == kSentinel || nodes_[node].entry.epoch > seen_epoch) return false;
  return erase(key);
}

void PrefixIndex::touch(std::span<const BlockKey> keys) {
  for (std::size_t i = keys.size(); i > 0; --i) {
    const std::uint32_t node = node_of(keys[i - 1]);
    if (node == kSentinel) continue;
    unlink(node);
    link_older_than(node, kSentinel);
  }
}

std::vector<PrefixIndex::Entry> PrefixIndex::entries() const {
  std::vector<Entry> all;
  all.reserve(size_);
  for (std::uint32_t node = nodes_[kSentinel].newer; node != kSentinel; node = nodes_[node].newer)
    all.push_back(nodes_[node].entry);
  return all;
}

// Closes the gap that a removal leaves in its run of cells: a later entry whose home lies at or before the
// gap moves into it (no tombstones, so lookups never slow down with age).
void PrefixIndex::empty_cell(std::uint32_t cell) {
  std::uint32_t gap = cell;
  for (std::uint32_t next = (gap + 1) & mask_; cells_[next] != kSentinel; next = (next + 1) & mask_) {
    const std::uint32_t distance_home = (next - home(nodes_[cells_[next]].entry.key)) & mask_;
    if (distance_home >= ((next - gap) & mask_)) {
      cells_[gap] = cells_[next];
      gap = next;
    }
  }
  cells_[gap] = kSentinel;
}

void PrefixIndex::unlink(std::uint32_t node) {
  nodes_[nodes_[node].older].newer = nodes_[node].newer;
  nodes_[nodes_[node].newer].older = nodes_[node].older;
}

void PrefixIndex::link_older_than(std::uint32_t node, std::uint32_t younger) {
  const std::uint32_t older = nodes_[younger].older;
  nodes_[node].older = older;
  nodes_[node].newer = younger;
  nodes_[older].newer = node;
  nodes_[younger].older = node;
}

}  // namespace trimtab::kv
