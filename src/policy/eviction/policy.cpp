#include "policy/eviction/policy.h"

#include <string>

#include "base/check.h"

namespace trimtab::eviction {

void Policy::stored(Slot slot, const Block& block, const Access& access) {
  if (slot >= entries_.size()) entries_.resize(std::size_t{slot} + 1);
  TRIMTAB_CHECK(!entries_[slot].here, "slot " + std::to_string(slot) + " is stored already");
  TRIMTAB_CHECK(block.bytes.value >= 0 && block.bytes.value <= UINT32_MAX,
                "a block of " + std::to_string(block.bytes.value) + " bytes");
  Entry& fresh = entries_[slot];
  fresh = Entry{};
  fresh.here = true;
  fresh.bytes = static_cast<std::uint32_t>(block.bytes.value);
  if (block.parent != kNoSlot) {
    TRIMTAB_CHECK(block.parent < entries_.size() && entries_[block.parent].here && block.parent != slot,
                  "the block before, slot " + std::to_string(block.parent) + ", is not stored");
    hang(slot, block.parent);
  } else if (block.parent_key != 0) {
    if (slot >= waits_for_.size()) waits_for_.resize(entries_.size());
    waits_for_[slot] = block.parent_key;
    waiting_.emplace(block.parent_key, slot);
  }
  if (block.expires != base::kForever) {
    fresh.expires = true;
    if (slot >= expires_ns_.size()) expires_ns_.resize(entries_.size());
    expires_ns_[slot] = block.expires.value;
    expiry_.emplace(block.expires.value, slot);
  }
  ++count_;
  bytes_ += block.bytes;
  on_stored(slot, block, access);
  if (block.parent != kNoSlot) on_changed(block.parent);
  if (!waiting_.empty()) join_waiting(slot, block.key);
}

void Policy::hang(Slot slot, Slot parent) {
  Entry& fresh = entries_[slot];
  Entry& before = entries_[parent];
  fresh.parent = parent;
  fresh.sibling_older = before.child;
  if (before.child != kNoSlot) entries_[before.child].sibling_newer = slot;
  before.child = slot;
}

/// Blocks are not always written in the order of their chain.
void Policy::join_waiting(Slot slot, std::uint64_t key) {
  auto found = waiting_.lower_bound({key, 0});
  while (found != waiting_.end() && found->first == key) {
    const Slot behind = found->second;
    found = waiting_.erase(found);
    waits_for_[behind] = 0;
    Slot first = slot;
    while (first != behind && entries_[first].parent != kNoSlot) first = entries_[first].parent;
    if (first == behind) continue;  // a chain that names its own end as what it hangs behind
    hang(behind, slot);
    on_joined(behind);
    on_changed(slot);
  }
}

void Policy::used(Slot slot, const Access& access) {
  TRIMTAB_CHECK(slot < entries_.size() && entries_[slot].here, "used: slot " + std::to_string(slot));
  on_used(slot, access);
}

void Policy::answered(Slot slot, Nanos asked, std::uint32_t tokens, Nanos now) {
  TRIMTAB_CHECK(slot < entries_.size() && entries_[slot].here, "answered: slot " + std::to_string(slot));
  on_answered(slot, asked, tokens, now);
}

void Policy::pin(Slot slot) {
  TRIMTAB_CHECK(slot < entries_.size() && entries_[slot].here, "pin: slot " + std::to_string(slot));
  if (entries_[slot].pins++ > 0) return;
  ++pinned_;
  on_changed(slot);
}

void Policy::unpin(Slot slot) {
  TRIMTAB_CHECK(slot < entries_.size() && entries_[slot].pins > 0, "unpin: slot " + std::to_string(slot));
  if (--entries_[slot].pins > 0) return;
  --pinned_;
  on_changed(slot);
}

void Policy::erased(Slot slot) {
  TRIMTAB_CHECK(slot < entries_.size() && entries_[slot].here, "erased: slot " + std::to_string(slot));
  TRIMTAB_CHECK(entries_[slot].pins == 0, "erased while it is read: slot " + std::to_string(slot));
  // What hung behind it begins a chain of its own: it can be found again once this block was stored again.
  for (Slot child = entries_[slot].child; child != kNoSlot;) {
    Entry& orphan = entries_[child];
    child = orphan.sibling_older;
    orphan.parent = orphan.sibling_newer = orphan.sibling_older = kNoSlot;
  }
  entries_[slot].child = kNoSlot;
  on_gone(slot, false);
  unlink(slot);
}

void Policy::unlink(Slot slot) {
  Entry& gone = entries_[slot];
  if (gone.sibling_newer != kNoSlot) {
    entries_[gone.sibling_newer].sibling_older = gone.sibling_older;
  } else if (gone.parent != kNoSlot) {
    entries_[gone.parent].child = gone.sibling_older;
  }
  if (gone.sibling_older != kNoSlot) entries_[gone.sibling_older].sibling_newer = gone.sibling_newer;
  if (waits(slot)) {
    waiting_.erase({waits_for_[slot], slot});
    waits_for_[slot] = 0;
  }
  if (gone.expires) expiry_.erase({expires_ns_[slot], slot});
  if (drained_root_ == slot || drained_ == slot) drained_root_ = drained_ = kNoSlot;
  --count_;
  bytes_ -= Bytes{gone.bytes};
  const Slot parent = gone.parent;
  gone = Entry{};
  if (parent != kNoSlot) on_changed(parent);
}

Slot Policy::end_of(Slot slot) const {
  while (entries_[slot].child != kNoSlot) slot = entries_[slot].child;
  return slot;
}

void Policy::drop(Slot slot, std::vector<Slot>& out) {
  on_gone(slot, true);
  unlink(slot);
  out.push_back(slot);
}

/// The end of the chain behind the candidate. A chain is walked once: the next block to go is found from the
/// one that went before.
Slot Policy::next(Nanos now) {
  for (std::uint64_t tried = 0; tried <= 2 * count_ + 2; ++tried) {
    const bool expired = !expiry_.empty() && expiry_.begin()->first <= now.value && tried == 0;
    const Slot root = expired ? expiry_.begin()->second : candidate(now);
    if (root == kNoSlot) return kNoSlot;
    const Slot end = end_of(root == drained_root_ && drained_ != kNoSlot ? drained_ : root);
    if (entries_[end].pins == 0) {
      drained_root_ = root;
      drained_ = end == root ? kNoSlot : entries_[end].parent;
      return end;
    }
    if (!expired) postpone(root);
  }
  // An order may come round to somebody so late that the tries are used up. That is no reason to drop nobody.
  for (Slot slot = 0; pinned_ < count_ && slot < entries_.size(); ++slot) {
    if (entries_[slot].here && droppable(slot)) {
      drained_root_ = slot;
      drained_ = kNoSlot;
      return slot;
    }
  }
  return kNoSlot;
}

std::vector<Slot> Policy::victims(Bytes bytes, Nanos now) {
  std::vector<Slot> out;
  const Bytes goal = bytes_ - bytes;
  while (count_ > 0 && bytes_ > goal) {
    const Slot slot = next(now);
    if (slot == kNoSlot) break;
    const Slot root = drained_root_, drained = drained_;
    drop(slot, out);
    drained_root_ = slot == root ? kNoSlot : root;
    drained_ = slot == root ? kNoSlot : drained;
  }
  return out;
}

std::size_t Policy::memory_bytes() const {
  return entries_.capacity() * sizeof(Entry) + expires_ns_.capacity() * sizeof(std::int64_t) +
         expiry_.size() * 48 + waits_for_.capacity() * sizeof(std::uint64_t) + waiting_.size() * 48 +
         order_bytes();
}

}  // namespace trimtab::eviction
