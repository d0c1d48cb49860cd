#include "sim/prefix_cache.h"

#include <algorithm>

namespace trimtab::sim {

PrefixCache::PrefixCache(std::int64_t capacity_blocks) : capacity_(capacity_blocks), table_(1024) {}

std::size_t PrefixCache::home(std::uint64_t id) const {
  std::uint64_t mixed = id * 0x9e3779b97f4a7c15ULL;
  mixed ^= mixed >> 29U;
  return static_cast<std::size_t>(mixed) & (table_.size() - 1);
}

std::uint32_t PrefixCache::find(std::uint64_t id) const {
  for (std::size_t at = home(id); table_[at].used; at = (at + 1) & (table_.size() - 1)) {
    if (table_[at].id == id) return static_cast<std::uint32_t>(at);
  }
  return kNone;
}

std::int64_t PrefixCache::match(std::span<const model::BlockRun> runs) {
  std::int64_t blocks = 0;
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      const std::uint32_t at = find(run.first + i);
      if (at == kNone) return blocks;
      if (capacity_ > 0) touch(at);
      ++blocks;
    }
  }
  return blocks;
}

void PrefixCache::store(std::span<const model::BlockRun> runs, std::int64_t blocks) {
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      if (blocks-- <= 0) return;
      const std::uint32_t at = find(run.first + i);
      if (at == kNone) {
        insert(run.first + i);
      } else if (capacity_ > 0) {
        touch(at);
      }
    }
  }
}

void PrefixCache::insert(std::uint64_t id) {
  if (capacity_ > 0 && count_ >= capacity_) {
    erase(oldest_);
    ++evicted_;
  }
  if (static_cast<std::size_t>(count_ + 1) * 2 > table_.size()) grow();
  std::size_t at = home(id);
  while (table_[at].used) at = (at + 1) & (table_.size() - 1);
  table_[at] = {id, kNone, kNone, true};
  ++count_;
  if (capacity_ > 0) touch(static_cast<std::uint32_t>(at));
}

void PrefixCache::unlink(std::uint32_t at) {
  const Entry& entry = table_[at];
  if (entry.newer != kNone) table_[entry.newer].older = entry.older;
  if (entry.older != kNone) table_[entry.older].newer = entry.newer;
  if (newest_ == at) newest_ = entry.older;
  if (oldest_ == at) oldest_ = entry.newer;
}

void PrefixCache::touch(std::uint32_t at) {
  if (newest_ == at) return;
  unlink(at);
  table_[at].newer = kNone;
  table_[at].older = newest_;
  if (newest_ != kNone) table_[newest_].newer = at;
  newest_ = at;
  if (oldest_ == kNone) oldest_ = at;
}

/// The entry moved in the table: its neighbours in the order of use follow.
void PrefixCache::relink(std::uint32_t from, std::uint32_t to) {
  const Entry& entry = table_[to];
  if (entry.newer != kNone) table_[entry.newer].older = to;
  if (entry.older != kNone) table_[entry.older].newer = to;
  if (newest_ == from) newest_ = to;
  if (oldest_ == from) oldest_ = to;
}

/// Open addressing without tombstones: entries behind the gap move back where their search would break.
void PrefixCache::erase(std::uint32_t gone) {
  unlink(gone);
  --count_;
  const std::size_t mask = table_.size() - 1;
  std::size_t gap = gone;
  for (std::size_t at = (gap + 1) & mask; table_[at].used; at = (at + 1) & mask) {
    if (((at - home(table_[at].id)) & mask) < ((at - gap) & mask)) continue;
    table_[gap] = table_[at];
    relink(static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(gap));
    gap = at;
  }
  table_[gap] = {};
}

void PrefixCache::grow() {
  std::vector<Entry> old(table_.size() * 2);
  std::swap(old, table_);
  std::vector<std::uint32_t> place(old.size(), kNone);
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (!old[i].used) continue;
    std::size_t at = home(old[i].id);
    while (table_[at].used) at = (at + 1) & (table_.size() - 1);
    table_[at] = old[i];
    place[i] = static_cast<std::uint32_t>(at);
  }
  if (capacity_ == 0) return;
  const auto moved = [&place](std::uint32_t at) { return at == kNone ? kNone : place[at]; };
  for (const std::uint32_t at : place) {
    if (at == kNone) continue;
    table_[at].newer = moved(table_[at].newer);
    table_[at].older = moved(table_[at].older);
  }
  newest_ = moved(newest_);
  oldest_ = moved(oldest_);
}

}  // namespace trimtab::sim
