#include "kv_store/walk.h"

#include <algorithm>

namespace trimtab::kv_store {

Walk::Walk(const WalkCursor& from, std::vector<BlockKey> sorted_keys, base::Nanos now)
    : cursor_(from), keys_(std::move(sorted_keys)), begun_(now) {
  keys_.erase(keys_.begin(), std::ranges::lower_bound(keys_, from.next));
}

std::optional<BlockKey> Walk::next() {
  if (at_ == keys_.size()) return std::nullopt;
  under_way_.insert(keys_[at_]);
  return keys_[at_++];
}

void Walk::finished(BlockKey key, const Found& found) {
  if (under_way_.erase(key) == 0) return;
  ++finished_;
  ++cursor_.blocks;
  cursor_.shards_written += found.shards_written;
  cursor_.shards_bad += found.shards_bad;
  cursor_.unreadable += found.unreadable ? 1 : 0;
  cursor_.bytes += found.bytes;
}

WalkCursor Walk::cursor() const {
  WalkCursor cursor = cursor_;
  if (!under_way_.empty()) {
    cursor.next = *under_way_.begin();
  } else if (at_ < keys_.size()) {
    cursor.next = keys_[at_];
  } else {
    cursor.next = {UINT64_MAX, UINT64_MAX};
  }
  return cursor;
}

Walk::Progress Walk::progress(base::Nanos now) const {
  Progress progress;
  progress.blocks_done = cursor_.blocks;
  progress.blocks_left = keys_.size() - finished_;
  const double all = static_cast<double>(progress.blocks_done + progress.blocks_left);
  if (all > 0) progress.done_ratio = static_cast<double>(progress.blocks_done) / all;
  if (progress.blocks_left == 0) {
    progress.left = base::Nanos{0};
  } else if (finished_ > 0) {
    const double each = static_cast<double>((now - begun_).value) / static_cast<double>(finished_);
    progress.left = base::Nanos{static_cast<std::int64_t>(each * static_cast<double>(progress.blocks_left))};
  }
  return progress;
}

}  // namespace trimtab::kv_store
