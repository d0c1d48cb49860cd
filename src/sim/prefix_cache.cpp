#include "sim/prefix_cache.h"

#include <utility>

namespace trimtab::sim {

PrefixCache::PrefixCache(std::int64_t capacity_blocks, std::unique_ptr<Eviction> eviction)
    : capacity_(capacity_blocks), eviction_(std::move(eviction)), table_(1024) {
  if (capacity_ > 0 && !eviction_) eviction_ = std::move(*make_eviction("lru", capacity_));
}

/// Runs are of consecutive ids: four of them share a cache line.
std::size_t PrefixCache::home(std::uint64_t id) const {
  std::uint64_t mixed = (id >> 2U) * 0x9e3779b97f4a7c15ULL;
  mixed ^= mixed >> 29U;
  return static_cast<std::size_t>(mixed << 2U | (id & 3U)) & (table_.size() - 1);
}

std::uint32_t PrefixCache::find(std::uint64_t id) const {
  for (std::size_t at = home(id); table_[at].slot != kNone; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at].id == id) return static_cast<std::uint32_t>(at);
  }
  return kNone;
}

bool PrefixCache::use(std::uint64_t id) {
  const std::uint32_t at = find(id);
  if (at == kNone) return false;
  if (capacity_ > 0) eviction_->used(table_[at].slot);
  return true;
}

void PrefixCache::put(std::uint64_t id) {
  if (!use(id)) insert(id);
}

std::int64_t PrefixCache::match(std::span<const model::BlockRun> runs) {
  std::int64_t blocks = 0;
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      if (!use(run.first + i)) return blocks;
      ++blocks;
    }
  }
  return blocks;
}

void PrefixCache::store(std::span<const model::BlockRun> runs, std::int64_t blocks) {
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      if (blocks-- <= 0) return;
      put(run.first + i);
    }
  }
}

void PrefixCache::insert(std::uint64_t id) {
  std::uint32_t slot = 0;
  if (capacity_ > 0) {
    slot = static_cast<std::uint32_t>(ids_.size());
    if (count_ >= capacity_) {
      slot = eviction_->leave();
      erase(find(ids_[slot]));
      ++evicted_;
    } else {
      ids_.push_back(id);
    }
    ids_[slot] = id;
    eviction_->stored(slot, id);
  }
  if (static_cast<std::size_t>(count_ + 1) * 2 > table_.size()) grow();
  std::size_t at = home(id);
  while (table_[at].slot != kNone) at = (at + 1) & (table_.size() - 1);
  table_[at] = {id, slot};
  ++count_;
}

void PrefixCache::clear() {
  // In the order of leaving, so that the eviction order ends empty too.
  for (std::int64_t left = count_; capacity_ > 0 && left > 0; --left) eviction_->leave();
  table_.assign(1024, {});
  ids_.clear();
  count_ = 0;
}

/// Open addressing without tombstones: entries behind the gap move back where their search would break.
void PrefixCache::erase(std::uint32_t gone) {
  --count_;
  const std::size_t mask = table_.size() - 1;
  std::size_t gap = gone;
  for (std::size_t at = (gap + 1) & mask; table_[at].slot != kNone; at = (at + 1) & mask) {
    if (((at - home(table_[at].id)) & mask) < ((at - gap) & mask)) continue;
    table_[gap] = table_[at];
    gap = at;
  }
  table_[gap] = {};
}

void PrefixCache::grow() {
  std::vector<Entry> old(table_.size() * 2);
  std::swap(old, table_);
  for (const Entry& entry : old) {
    if (entry.slot == kNone) continue;
    std::size_t at = home(entry.id);
    while (table_[at].slot != kNone) at = (at + 1) & (table_.size() - 1);
    table_[at] = entry;
  }
}

}  // namespace trimtab::sim
