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

void PoolStore::leave_unsaved(Slot& slot) {
  settle(slot);
  slot.unsaved = any_unsaved_ = true;
  unsaved_from_ = 0;
}

void PoolStore::take_up_unsaved() {
  for (; any_unsaved_ && saves_under_way_ + dirty_.size() < kSavesMost; ++unsaved_from_) {
    if (unsaved_from_ == slots_.size()) {
      any_unsaved_ = false;
      return;
    }
    Slot& slot = slots_[unsaved_from_];
    if (!slot.unsaved || slot.state != State::kReady || slot.storing || slot.commit != 0) continue;
    slot.unsaved = false;
    slot.commit = ++last_commit_;
    undurable_.insert(slot.commit);
    dirty_.push_back(unsaved_from_);
  }
}

void PoolStore::start_saves() {
  if (saving()) take_up_unsaved();
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
    tier_->save(slot.key, bytes(number), origin_of(slot), number, now_);
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
    done ? settle(slot) : leave_unsaved(slot);
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
  for (const std::uint32_t slot : dirty_)
    if (slots_[slot].commit != 0) leave_unsaved(slots_[slot]);
  dirty_.clear();
}

PoolStore::Lease PoolStore::lease(BlockKey key, LeaseId id, std::int32_t priority, std::uint32_t loads_most) {
  using Kind = Lease::Kind;
  if (const auto found = index_.find(key)) {
    Slot& slot = slots_[found->value];
    ++slot.pins;
    tell_pins(found->value);
    ++leases_;
    ++counters_.gets_memory;
    return {Kind::kReady, found->value, 0, slot.checksum};
  }
  const auto started = in_progress_.find(key);
  const bool loading = started != in_progress_.end() && slots_[started->second].state == State::kLoading;
  if (!loading && (tier_ == nullptr || started != in_progress_.end() || !tier_->present(key))) {
    ++counters_.gets_stale;
    return {Kind::kMissing, 0, 0, 0};
  }
  if (!loading && loads_.size() >= loads_most) return {Kind::kBusy, 0, 0, 0};
  std::optional<std::uint32_t> number;
  if (loading) {
    number = started->second;
    ++counters_.loads_shared;
  } else {
    number = take_memory_slot();
    if (!number) return {Kind::kBusy, 0, 0, 0};
    start_load(*number, key, priority);
  }
  loads_[*number].leases.push_back(id);
  ++slots_[*number].pins;
  ++leases_;
  return {Kind::kLoading, *number, slots_[*number].layers, 0};
}

void PoolStore::end_lease(std::uint32_t number, LeaseId id, bool corrupt) {
  TRIMTAB_CHECK(leases_ > 0);
  --leases_;
  if (corrupt) withdraw_corrupt(number);
  Slot& slot = slots_[number];
  if (slot.state == State::kLoading) {
    Load& load = loads_.at(number);
    std::erase(load.leases, id);
    if (load.leases.empty() && load.gets.empty()) {
      tier_->cancel_load(number, now_);
      ++counters_.loads_cancelled;
      in_progress_.erase(slot.key);
      loads_.erase(number);
      slot.state = State::kWithdrawn;
    }
  }
  drop_pin(number);
}

void PoolStore::start_load(std::uint32_t number, BlockKey key, std::int32_t priority) {
  slots_[number].state = State::kLoading;
  slots_[number].key = key;
  in_progress_[key] = number;
  tier_->load(key, bytes(number), number, base::kForever, priority, now_);
}

void PoolStore::layers_came(std::uint32_t number, std::uint32_t layers) {
  slots_[number].layers = layers;
  for (const LeaseId lease : loads_.at(number).leases)
    answers_.leases.push_back({lease, number, layers, FetchOutcome::kLayers, 0});
}

void PoolStore::loaded(std::uint32_t number, StoreTier::Event::Kind how) {
  using protocol::GetOutcome;
  Slot& slot = slots_[number];
  in_progress_.erase(slot.key);
  const Load waiting = std::move(loads_[number]);
  loads_.erase(number);
  const std::size_t waiters = waiting.gets.size() + waiting.leases.size();
  protocol::Got answer{GetOutcome::kPinned, number, 0};
  FetchOutcome outcome = FetchOutcome::kWhole;
  if (how == StoreTier::Event::Kind::kLoaded) {
    slot.state = State::kReady;
    slot.checksum = content_checksum(slot.key, bytes(number));
    answer.checksum = slot.checksum;
    TRIMTAB_CHECK(index_.insert(slot.key, number));
    counters_.gets_file += waiters;
    for (const ClientId client : waiting.gets) pin(client, number);
  } else {
    const bool gone = how == StoreTier::Event::Kind::kGone;
    answer = {gone ? GetOutcome::kMissing : GetOutcome::kRefused, 0, 0};
    outcome = gone ? FetchOutcome::kMissing : FetchOutcome::kFailed;
    (gone ? counters_.gets_stale : counters_.gets_refused) += waiters;
    slot.state =
        State::kWithdrawn;  // leases may be copying layers that had come: it is theirs until they end
    if (slot.pins == 0) free_slot(number);
  }
  for (const ClientId client : waiting.gets) answers_.gets.emplace_back(client, answer);
  for (const LeaseId lease : waiting.leases)
    answers_.leases.push_back({lease, number, 0, outcome, answer.checksum});
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
      } else if (event.kind == Kind::kLayers) {
        layers_came(slot, event.layers);
      } else {
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
