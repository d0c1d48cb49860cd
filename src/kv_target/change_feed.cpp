#include "kv_target/change_feed.h"

namespace trimtab::kv_target {

void ChangeFeed::forget(const ShardName& name) {
  const auto found = sequence_of_.find(name);
  if (found == sequence_of_.end()) return;
  const auto entry = by_sequence_.find(found->second);
  if (entry->second.bytes == 0) --erases_;
  by_sequence_.erase(entry);
  sequence_of_.erase(found);
}

void ChangeFeed::put(const ShardName& name, std::uint32_t bytes) {
  forget(name);
  by_sequence_.emplace(++last_, Entry{name, bytes});
  sequence_of_.emplace(name, last_);
}

void ChangeFeed::erased(const ShardName& name) {
  put(name, 0);
  if (++erases_ <= erases_kept_) return;
  // The oldest half at once, so that the search for them is paid seldom.
  ++generation_;
  for (auto it = by_sequence_.begin(); it != by_sequence_.end() && erases_ > erases_kept_ / 2;) {
    if (it->second.bytes != 0) {
      ++it;
      continue;
    }
    forgotten_ = it->first;
    sequence_of_.erase(it->second.name);
    it = by_sequence_.erase(it);
    --erases_;
  }
}

Changes ChangeFeed::since(const Cursor& cursor, std::uint32_t limit) const {
  // Erases that were forgotten are harmless to somebody who was told of changes beyond them, and to somebody
  // whose telling began after they were forgotten: he was never told of what they erased.
  const bool knows =
      cursor.epoch == epoch_ && (cursor.generation == generation_ || cursor.sequence >= forgotten_);
  Changes answer;
  answer.complete = !knows;
  answer.next = {epoch_, knows ? cursor.sequence : 0, generation_};
  auto it = by_sequence_.upper_bound(answer.next.sequence);
  for (; it != by_sequence_.end() && answer.changes.size() < limit; ++it) {
    answer.changes.push_back({it->first, it->second.name, it->second.bytes});
    answer.next.sequence = it->first;
  }
  answer.more = it != by_sequence_.end();
  return answer;
}

}  // namespace trimtab::kv_target
