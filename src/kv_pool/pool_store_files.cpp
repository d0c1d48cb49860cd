// The half of PoolStore that deals with the file tier.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv_pool/pool_store.h"

namespace trimtab::kv_pool {

namespace {

// Blocks per batch of the writer: enough to share one sync, few enough that a flush does not wait long.
constexpr std::size_t kBatchBlocks = 16;

}  // namespace

std::optional<std::uint32_t> PoolStore::take_file_slot(std::vector<FileEntry>& erased) {
  if (file_free_.empty()) {
    const auto oldest = file_index_.oldest(
        [this](const kv::PrefixIndex::Entry& entry) { return file_slots_[entry.value].readers == 0; });
    if (!oldest) return {};
    file_index_.erase(oldest->key);
    erased.push_back({oldest->key, oldest->value, file_slots_[oldest->value].checksum});
    ++counters_.file_evictions;
    return oldest->value;
  }
  const std::uint32_t slot = file_free_.back();
  file_free_.pop_back();
  return slot;
}

void PoolStore::start_store() {
  if (!writes_files_ || storing_) return;
  StoreJob job;
  // A damaged slot that is still being read stays out of the free ones until the reader is through.
  const auto unread =
      std::stable_partition(pending_erases_.begin(), pending_erases_.end(),
                            [this](const FileEntry& entry) { return file_slots_[entry.slot].readers > 0; });
  job.erased.assign(unread, pending_erases_.end());
  pending_erases_.erase(unread, pending_erases_.end());
  for (const FileEntry& entry : job.erased) file_free_.push_back(entry.slot);  // erased before it is written
  while (!dirty_.empty() && job.items.size() < kBatchBlocks) {
    Slot& slot = slots_[dirty_.front()];
    if (slot.state != State::kReady || slot.commit == 0 || slot.storing) {  // withdrawn meanwhile
      dirty_.pop_front();
      continue;
    }
    if (file_index_.find(slot.key)) {  // an earlier copy, verified by the writer, got there first
      settle(slot);
      dirty_.pop_front();
      continue;
    }
    const auto file_slot = take_file_slot(job.erased);
    if (!file_slot) break;
    slot.storing = true;
    job.items.push_back(
        {{slot.key, *file_slot, slot.checksum}, dirty_.front(), bytes(dirty_.front()), false});
    dirty_.pop_front();
  }
  if (job.items.empty() && job.erased.empty()) return;
  storing_ = true;
  workers_->store(std::move(job));
}

void PoolStore::finish(const StoreDone& done) {
  storing_ = false;
  if (done.failed) fall_back_to_memory(done.message);
  for (const StoreJob::Item& item : done.job.items) {
    Slot& slot = slots_[item.memory_slot];
    slot.storing = false;
    if (!done.failed && !item.corrupt) {
      ++counters_.file_writes;
      file_slots_[item.entry.slot].checksum = item.entry.checksum;
      TRIMTAB_CHECK(file_index_.insert(item.entry.key, item.entry.slot, slot.parent));
    } else {
      file_free_.push_back(item.entry.slot);
    }
    if (slot.state == State::kWithdrawn) {
      if (slot.pins == 0) free_slot(item.memory_slot);
    } else if (item.corrupt) {
      ++counters_.corrupt;
      withdraw_memory(item.memory_slot);
    } else {
      settle(slot);
    }
  }
}

void PoolStore::fall_back_to_memory(const std::string& reason) {
  ++counters_.file_errors;
  answers_.disk_errors.push_back(reason);
  writes_files_ = false;
  for (const std::uint32_t slot : dirty_) settle(slots_[slot]);
  dirty_.clear();
}

void PoolStore::finish(const LoadDone& done) {
  using protocol::GetOutcome;
  const std::uint32_t slot = done.job.memory_slot;
  const BlockKey key = done.job.entry.key;
  --file_slots_[done.job.entry.slot].readers;
  in_progress_.erase(key);
  const std::vector<ClientId> waiting = std::move(loads_[slot]);
  loads_.erase(slot);
  protocol::Got answer{GetOutcome::kPinned, slot, done.job.entry.checksum};
  if (done.outcome == IoOutcome::kDone) {
    slots_[slot].state = State::kReady;
    TRIMTAB_CHECK(index_.insert(key, slot));
    counters_.gets_file += waiting.size();
    for (const ClientId client : waiting) pin(client, slot);
  } else {
    answer = {done.outcome == IoOutcome::kCorrupt ? GetOutcome::kCorrupt : GetOutcome::kMissing, 0, 0};
    counters_.gets_stale += waiting.size();
    if (done.outcome == IoOutcome::kCorrupt) ++counters_.corrupt;
    if (done.outcome == IoOutcome::kFailed) {
      ++counters_.file_errors;
      answers_.disk_errors.push_back(done.message);
    }
    free_slot(slot);
    withdraw_file(key);
  }
  for (const ClientId client : waiting) answers_.gets.emplace_back(client, answer);
}

void PoolStore::advance() {
  if (workers_ != nullptr) {
    for (const LoadDone& done : workers_->take_loads()) finish(done);
    for (const StoreDone& done : workers_->take_stores()) finish(done);
    start_store();
  }
  answer_flushes();
}

std::optional<protocol::Flushed> PoolStore::flush(ClientId client) {
  if (!writes_files_) return protocol::Flushed{0};
  if (undurable_.empty()) return protocol::Flushed{1};
  flushes_.emplace_back(client, last_commit_);
  return {};
}

void PoolStore::answer_flushes() {
  std::erase_if(flushes_, [this](const std::pair<ClientId, std::uint64_t>& flush) {
    if (!undurable_.empty() && *undurable_.begin() <= flush.second) return false;
    answers_.flushes.emplace_back(flush.first,
                                  protocol::Flushed{writes_files_ ? std::uint8_t{1} : std::uint8_t{0}});
    return true;
  });
}

}  // namespace trimtab::kv_pool
