#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kv_store/store_parts.h"

namespace trimtab::kv_store {

namespace {

/// The erases of one block's shards; nobody waits for them.
constexpr kv_target::Verb kErase = kv_target::Verb::kErase;

}  // namespace

StripedStore::Handle StripedStore::write(BlockKey key, std::span<const std::byte> block, base::Nanos deadline,
                                         base::Nanos now) {
  TRIMTAB_CHECK(block.size() == options_.layout.block_bytes);
  const Handle handle = ++last_handle_;
  fresh_ = true;
  if (deadline == base::kForever) deadline = now + options_.write_timeout;
  waiting_writes_.emplace(++last_order_, WaitingWrite{handle, key, block, deadline});
  return handle;
}

bool StripedStore::start_write(base::Nanos now) {
  if (waiting_writes_.empty()) return false;
  const auto first = waiting_writes_.begin();
  const WaitingWrite what = first->second;
  const auto answer = [&](StoreEvent::Kind kind) {
    waiting_writes_.erase(first);
    events_.push_back({kind, what.handle, 0, 0, true});
    return true;
  };
  if (index_.present(what.key)) {
    ++counters_.writes_present;
    return answer(StoreEvent::Kind::kWritten);
  }
  if (now >= what.deadline) {
    ++counters_.writes_failed;
    return answer(StoreEvent::Kind::kWriteFailed);
  }
  if (const auto running = writing_.find(what.key); running != writing_.end()) {
    // Equal keys mean equal tokens: what is being written will do for both.
    static_cast<WriteOp*>(ops_.find(running->second))->handles.push_back(what.handle);
    writes_by_handle_.emplace(what.handle, what.key);
    ++counters_.writes_joined;
    waiting_writes_.erase(first);
    return true;
  }
  // Half of the memory at most, so that targets that take nothing do not stop reads.
  if (pool_.available() < kShards || write_ops_ * 2 * kShards > pool_.count()) return false;
  if (const auto repair = repairing_.find(what.key); repair != repairing_.end()) return false;
  repairs_.drop(what.key);
  StripeWrite::Plan plan;
  plan.places = 0;
  const Places& places = map_.of(what.key);
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (channels_.usable(places[s]) && index_.alive(places[s])) plan.places |= static_cast<ShardSet>(1U << s);
  plan.policy = options_.write_policy;
  plan.deadline = what.deadline;
  WriteOp& op = ops_.add(std::make_unique<WriteOp>(*this, what.key, plan));
  op.handles.push_back(what.handle);
  writes_by_handle_.emplace(what.handle, what.key);
  writing_.emplace(what.key, op.id);
  ++write_ops_;
  waiting_writes_.erase(first);
  op.start(what.block, now);
  return true;
}

void StripedStore::WriteOp::start(std::span<const std::byte> block, base::Nanos now) {
  kv_code::Shards shards;
  for (std::uint32_t s = 0; s < kShards; ++s) shards[s] = (buffers_.take(s), buffers_[s]);
  kv_code::write_shards(store_.options_.layout, key_, block, shards);
  act(machine_.step({}, now), now);
}

void StripedStore::WriteOp::answered(const Answer& answer, base::Nanos now) {
  StripeWrite::Event event;
  event.kind = StripeWrite::Event::Kind::kAnswer;
  event.shard = answer.ticket.shard;
  event.outcome = answer.outcome;
  event.usable = store_.channels_.usable(answer.target) && store_.index_.alive(answer.target);
  act(machine_.step(event, now), now);
}

void StripedStore::WriteOp::time(base::Nanos now) {
  StripeWrite::Event event;
  event.kind = StripeWrite::Event::Kind::kTime;
  act(machine_.step(event, now), now);
}

void StripedStore::WriteOp::cancel(base::Nanos now) {
  StripeWrite::Event event;
  event.kind = StripeWrite::Event::Kind::kCancel;
  act(machine_.step(event, now), now);
}

void StripedStore::WriteOp::act(const StripeWrite::Actions& actions, base::Nanos now) {
  for (std::uint8_t s = 0; s < kShards; ++s) {
    if (!kv_code::has(actions.submit, s)) continue;
    Channels::Outgoing out;
    out.request.verb = kv_target::Verb::kWrite;
    out.request.name = {key_, s};
    out.request.content = buffers_[s];
    out.ticket = {id, s, 0};
    out.buffer = buffers_.id(s);
    store_.channels_.send(places_[s], out, now);
  }
  store_.submit_erases(key_, places_, actions.erase, now);
  if (actions.ended) return store_.end_write(*this, *actions.ended, now);
  store_.arm(id, actions.wake);
}

void StripedStore::end_write(WriteOp& op, StripeWrite::End how, base::Nanos now) {
  writing_.erase(op.key_);
  --write_ops_;
  auto kind = StoreEvent::Kind::kWritten;
  if (how == StripeWrite::End::kDurable) {
    ++counters_.writes;
    // What lay under the key until now was no block; only this writing's shards count.
    index_.erase(op.key_);
    for (std::uint32_t s = 0; s < kShards; ++s)
      if (kv_code::has(op.machine_.written(), s)) index_.put(op.key_, s, op.places_[s], map_.of(op.key_)[s]);
    const bool lacks = op.machine_.lacking() != 0;
    counters_.writes_lacking += lacks ? 1 : 0;
    // The map may have changed meanwhile, and its walk has begun without this block.
    if (lacks || op.places_ != map_.of(op.key_)) repairs_.push({op.key_, RepairReason::kLacking, now});
  } else {
    const bool full = how == StripeWrite::End::kFull;
    ++(full ? counters_.writes_full : counters_.writes_failed);
    kind = full ? StoreEvent::Kind::kFull : StoreEvent::Kind::kWriteFailed;
    index_.erase(op.key_);
  }
  for (const Handle handle : op.handles) {
    writes_by_handle_.erase(handle);
    events_.push_back({kind, handle, 0, 0, true});
  }
  ops_.end(op.id);
}

void StripedStore::submit_erases(BlockKey key, const Places& at, ShardSet shards, base::Nanos now) {
  EraseOp* op = nullptr;
  for (std::uint8_t s = 0; s < kShards; ++s) {
    if (!kv_code::has(shards, s) || at[s] == kNowhere || !channels_.usable(at[s])) continue;
    Channels::Outgoing out;
    out.request.verb = kErase;
    out.request.name = {key, s};
    if (op == nullptr) op = &ops_.add(std::make_unique<EraseOp>(*this, key));
    ++op->left;
    out.ticket = {op->id, s, 0};
    channels_.send(at[s], out, now);
  }
}

void StripedStore::erase(std::span<const BlockKey> keys, base::Nanos now) {
  fresh_ = true;
  for (const BlockKey key : keys) {
    ++counters_.erases;
    repairs_.drop(key);
    // A repair's writes are in its targets' queues before these erases, or never happen.
    if (const auto repair = repairing_.find(key); repair != repairing_.end())
      end_repair(*static_cast<RepairOp*>(ops_.find(repair->second)), now);
    if (const auto running = writing_.find(key); running != writing_.end())
      static_cast<WriteOp*>(ops_.find(running->second))->cancel(now);
    if (auto at = index_.find(key)) {
      // What a failed target did after all is in its queue before these.
      for (std::uint32_t s = 0; s < kShards; ++s)
        if ((*at)[s] == kNowhere) (*at)[s] = map_.of(key)[s];
      submit_erases(key, *at, kv_code::kAllShards, now);
    }
    index_.erase(key);
  }
  ops_.sweep();
}

}  // namespace trimtab::kv_store
