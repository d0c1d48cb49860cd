// The half of PoolStore that deals with the store below memory.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv_pool/content_checksum.h"
#include "kv_pool/pool_store.h"

namespace trimtab::kv_pool {

namespace {

// Blocks on their way to the store: enough to share a sync, few enough that a flush does not wait long.
constexpr std::uint32_t kSavesMost = 16;
// After a save that failed, so long nothing is saved: a full disk is not asked again for every block.
constexpr base::Nanos kPause{5'000'000'000};

}  // namespace

void PoolStore::start_saves() {
  while (saving() && !dirty_.empty() && saves_under_way_ < kSavesMost) {
    const std::uint32_t number = dirty_.front();
    dirty_.pop_front();
    Slot& slot = slots_[number];
    if (slot.state != State::kReady || slot.commit == 0 || slot.storing) continue;  // withdrawn meanwhile
    // What a user wrote into its slot after it had said so must not reach others either.
    if (content_checksum(slot.key, bytes(number)) != slot.checksum) {
      ++counters_.corrupt;
      withdraw_memory(number);
      continue;
    }
    slot.storing = true;
    ++saves_under_way_;
    tier_->save(slot.key, bytes(number), slot.parent, number, now_);
  }
}

void PoolStore::saved(std::uint32_t number, bool done) {
  Slot& slot = slots_[number];
  slot.storing = false;
  --saves_under_way_;
  if (done) {
    ++counters_.file_writes;
    failing_ = false;
  } else {
    pause_saving(tier_->trouble());
  }
  if (slot.state == State::kWithdrawn) {
    if (slot.pins == 0) free_slot(number);
  } else {
    settle(slot);
  }
}

void PoolStore::pause_saving(const std::string& reason) {
  ++losses_;
  if (now_ < paused_until_) return;  // one of several that were under way
  failing_ = true;
  paused_until_ = now_ + kPause;
  ++counters_.file_errors;
  answers_.disk_errors.push_back(reason.empty() ? "no target of the pool takes blocks" : reason);
  losses_ += dirty_.size();
  for (const std::uint32_t slot : dirty_) settle(slots_[slot]);
  dirty_.clear();
}

void PoolStore::loaded(std::uint32_t number, StoreTier::Event::Kind how) {
  using protocol::GetOutcome;
  Slot& slot = slots_[number];
  in_progress_.erase(slot.key);
  const std::vector<ClientId> waiting = std::move(loads_[number]);
  loads_.erase(number);
  protocol::Got answer{GetOutcome::kPinned, number, 0};
  if (how == StoreTier::Event::Kind::kLoaded) {
    slot.state = State::kReady;
    slot.checksum = content_checksum(slot.key, bytes(number));
    answer.checksum = slot.checksum;
    TRIMTAB_CHECK(index_.insert(slot.key, number));
    counters_.gets_file += waiting.size();
    for (const ClientId client : waiting) pin(client, number);
  } else {
    const bool gone = how == StoreTier::Event::Kind::kGone;
    answer = {gone ? GetOutcome::kMissing : GetOutcome::kRefused, 0, 0};
    (gone ? counters_.gets_stale : counters_.gets_refused) += waiting.size();
    free_slot(number);
  }
  for (const ClientId client : waiting) answers_.gets.emplace_back(client, answer);
}

void PoolStore::advance() {
  if (tier_ != nullptr) {
    events_.clear();
    tier_->advance(now_, events_);
    for (const StoreTier::Event& event : events_) {
      using Kind = StoreTier::Event::Kind;
      const auto slot = static_cast<std::uint32_t>(event.tag);
      if (event.kind == Kind::kSaved || event.kind == Kind::kSaveFailed) {
        saved(slot, event.kind == Kind::kSaved);
      } else if (event.kind != Kind::kLayers) {
        loaded(slot, event.kind);
      }
    }
    start_saves();
  }
  answer_flushes();
}

protocol::Flushed PoolStore::flushed(ClientId client) {
  const auto told = losses_told_.find(client);
  if (told == losses_told_.end()) return {failing_ ? std::uint8_t{0} : std::uint8_t{1}};
  // Each loss is told once to everybody who may be the one that lost something.
  return {std::exchange(told->second, losses_) == losses_ ? std::uint8_t{1} : std::uint8_t{0}};
}

std::optional<protocol::Flushed> PoolStore::flush(ClientId client) {
  if (tier_ == nullptr) return protocol::Flushed{0};
  if (undurable_.empty()) return flushed(client);
  flushes_.emplace_back(client, last_commit_);
  return {};
}

void PoolStore::answer_flushes() {
  std::erase_if(flushes_, [this](const std::pair<ClientId, std::uint64_t>& flush) {
    if (!undurable_.empty() && *undurable_.begin() <= flush.second) return false;
    answers_.flushes.emplace_back(flush.first, flushed(flush.first));
    return true;
  });
}

}  // namespace trimtab::kv_pool
