#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kv_store/store_parts.h"

namespace trimtab::kv_store {

using kv_code::kData;

namespace {
constexpr std::uint32_t kTries = 4;
}

StripedStore::Handle StripedStore::read(std::span<const BlockRead> blocks, base::Nanos deadline,
                                        std::int32_t priority, base::Nanos now) {
  const Handle handle = ++last_handle_;
  if (blocks.empty()) return handle;
  fresh_ = true;
  if (deadline == base::kForever) deadline = now + options_.read_timeout;
  Batch& batch = batches_[handle];
  batch.left = static_cast<std::uint32_t>(blocks.size());
  batch.ops.resize(blocks.size());
  batch.waiting.resize(blocks.size());
  batch.over.resize(blocks.size());
  for (std::uint32_t i = 0; i < blocks.size(); ++i) {
    TRIMTAB_CHECK(blocks[i].to.size() == options_.layout.block_bytes);
    batch.waiting[i] = {-std::int64_t{priority}, deadline.value, ++last_order_};
    waiting_reads_.emplace(batch.waiting[i],
                           WaitingRead{handle, i, blocks[i].key, blocks[i].to, priority, deadline});
  }
  return handle;
}

void StripedStore::cancel(Handle handle, base::Nanos now) {
  const auto found = batches_.find(handle);
  if (found == batches_.end()) return;
  Batch& batch = found->second;
  for (std::size_t i = 0; i < batch.ops.size(); ++i) {
    if (batch.over[i]) continue;
    ++counters_.reads_cancelled;
    if (waiting_reads_.erase(batch.waiting[i]) > 0) continue;
    if (Op* op = ops_.find(batch.ops[i])) static_cast<ReadOp*>(op)->cancel(now);
  }
  batches_.erase(found);
  std::erase_if(events_, [&](const StoreEvent& event) { return event.handle == handle; });
  ops_.sweep();
  channels_.purge();
}

void StripedStore::end_read_block(Handle handle, std::uint32_t index, StoreEvent::Kind kind) {
  const auto found = batches_.find(handle);
  if (found == batches_.end()) return;
  found->second.over[index] = true;
  const bool last = --found->second.left == 0;
  if (last) batches_.erase(found);
  events_.push_back({kind, handle, index, static_cast<std::uint32_t>(options_.layout.layers.size()), last});
}

void StripedStore::expire_waiting_reads(base::Nanos now) {
  for (auto it = waiting_reads_.begin(); it != waiting_reads_.end();) {
    if (it->second.deadline > now) {  // so are all others of this priority
      it = waiting_reads_.lower_bound({std::get<0>(it->first) + 1, INT64_MIN, 0});
      continue;
    }
    ++counters_.reads_failed;
    const WaitingRead late = it->second;
    it = waiting_reads_.erase(it);
    end_read_block(late.batch, late.index, StoreEvent::Kind::kReadFailed);
  }
}

StripeRead::Plan StripedStore::read_plan(const Places& at, bool background, base::Nanos deadline) const {
  StripeRead::Plan plan;
  plan.deadline = deadline;
  plan.at_start = options_.reads_at_start;
  struct Candidate {
    std::uint32_t rank = 0;
    std::uint8_t shard = 0;
  };
  std::array<Candidate, kShards> candidates{};
  std::array<std::int64_t, kShards> medians{}, tails{};
  std::size_t count = 0;
  bool immediate = true, elsewhere = false;
  TargetId only = kNowhere;
  for (std::uint8_t s = 0; s < kShards; ++s) {
    if (at[s] == kNowhere || !index_.alive(at[s]) || !channels_.usable(at[s])) continue;
    immediate &= channels_.immediate(at[s]);
    elsewhere |= only != kNowhere && at[s] != only;
    only = at[s];
    const bool suspect = channels_.health(at[s]) == TargetHealth::State::kSuspect;
    candidates[count++] = {(suspect ? 4U : 0U) + (s >= kData ? 1U : 0U), s};
  }
  // The eleventh and the hedge are there for a target that is slower than the others: there must be another.
  if (immediate || background || !elsewhere) plan.at_start = kData;
  if (!immediate && elsewhere) {
    // A target several times slower than the others is asked after them.
    for (std::size_t i = 0; i < count; ++i)
      medians[i] = channels_.latency(at[candidates[i].shard]).quantile(500, base::Nanos{0}).value;
    auto sorted = medians;
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < count; ++i)
      if (medians[i] > 4 * sorted[count / 2]) candidates[i].rank += 2;
    for (std::size_t i = 0; i < count; ++i)
      tails[i] = channels_.latency(at[candidates[i].shard])
                     .quantile(options_.hedge_per_mille, options_.hedge_first)
                     .value;
    // The answer that is waited for is the tenth.
    std::sort(tails.begin(), tails.begin() + static_cast<std::ptrdiff_t>(count));
    const base::Nanos tail{tails[std::min<std::size_t>(count, kData) - 1]};
    plan.hedge_after = std::clamp(tail, options_.hedge_least, options_.hedge_most);
  }
  std::stable_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count),
                   [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < count; ++i) plan.order.push_back(candidates[i].shard);
  return plan;
}

bool StripedStore::start_read(base::Nanos now) {
  if (waiting_reads_.empty()) return false;
  const auto first = waiting_reads_.begin();
  const std::uint64_t bytes = options_.layout.shard_bytes * options_.reads_at_start;
  if (read_bytes_ > 0 && read_bytes_ + bytes > options_.read_bytes_in_flight) return false;
  // A write that waits keeps room for one.
  const std::uint32_t needed = waiting_writes_.empty() ? kShards : 2 * kShards;
  if (pool_.available() < needed) {
    channels_.purge();
    if (pool_.available() < kShards) return false;
  }
  const WaitingRead what = first->second;
  waiting_reads_.erase(first);
  const auto at = index_.find(what.key);
  if (!at || !index_.present(what.key)) {
    ++counters_.reads_missing;
    end_read_block(what.batch, what.index, StoreEvent::Kind::kMissing);
    return true;
  }
  ReadOp& op = ops_.add(std::make_unique<ReadOp>(*this, what, *at, read_plan(*at, false, what.deadline)));
  batches_.at(what.batch).ops[what.index] = op.id;
  op.start(now);
  return true;
}

StripeRead::Event event_of(const Answer& answer, const Buffers& buffers) {
  StripeRead::Event event;
  event.kind = StripeRead::Event::Kind::kAnswer;
  event.shard = answer.ticket.shard;
  event.piece = answer.ticket.piece;
  event.outcome = answer.outcome;
  event.bytes = answer.bytes;
  event.shard_bytes = answer.lent ? std::span(answer.lent.get(), answer.bytes)
                                  : std::span<const std::byte>(buffers[event.shard]);
  return event;
}

std::uint64_t StripedStore::ask_for(ShardSet shards, BlockKey key, const Places& at, OpId op,
                                    Buffers& buffers, bool foreground, base::Nanos now) {
  std::uint64_t bytes = 0;
  for (std::uint8_t s = 0; s < kShards; ++s) {
    if (!kv_code::has(shards, s)) continue;
    const BufferPool::Id buffer = buffers.take(s);
    bytes += buffers[s].size();
    for (std::uint8_t p = 0; p < pieces_.count(); ++p) {
      Channels::Outgoing out;
      out.request.name = {key, s};
      out.request.offset = pieces_.begin(p);
      out.request.buffer = buffers[s].subspan(pieces_.begin(p), pieces_.bytes(p));
      // The last piece has room for a whole unit where the target reads in units.
      if (p + 1U == pieces_.count() && channels_.reads_units(at[s]))
        out.request.buffer = buffers.whole(s).subspan(pieces_.begin(p));
      out.ticket = {op, s, p};
      out.buffer = buffer;
      out.later = foreground && p > 0;
      // In pieces a shard could be lent from two writings of it.
      out.request.lend = foreground && pieces_.count() == 1;
      channels_.send(at[s], out, now);
    }
  }
  return bytes;
}

void StripedStore::ReadOp::answered(const Answer& answer, base::Nanos now) {
  if (answer.lent) lent_[answer.ticket.shard] = answer.lent;
  act(machine_.step(event_of(answer, buffers_), now), now);
}

void StripedStore::ReadOp::time(base::Nanos now) {
  armed_ = base::kForever;
  StripeRead::Event event;
  event.kind = StripeRead::Event::Kind::kTime;
  act(machine_.step(event, now), now);
}

void StripedStore::ReadOp::cancel(base::Nanos now) {
  StripeRead::Event event;
  event.kind = StripeRead::Event::Kind::kCancel;
  machine_.step(event, now);
  store_.read_bytes_ -= bytes_;
  store_.ops_.end(id);
}

void StripedStore::ReadOp::act(const StripeRead::Actions& actions, base::Nanos now) {
  const std::uint64_t asked = store_.ask_for(actions.submit, what_.key, at_, id, buffers_, true, now);
  bytes_ += asked;
  store_.read_bytes_ += asked;
  if (actions.layers_ready > assembled_) hand_out(actions.layers_ready);
  if (actions.ended) return over(*actions.ended, now);
  if (actions.wake >= armed_) return;
  armed_ = actions.wake;
  store_.arm(id, armed_);
}

void StripedStore::ReadOp::hand_out(std::uint32_t layers) {
  const kv_code::StripeReader& reader = machine_.reader();
  // What an earlier try handed out belongs to its writing; layers of another must not follow it.
  if (what_.layers_said > 0 && what_.writing != reader.writing()) return;
  what_.writing = reader.writing();
  const auto& all = store_.options_.layout.layers;
  for (; assembled_ < layers; ++assembled_) {
    const auto& layer = all[assembled_];
    reader.assemble(assembled_, what_.to.subspan(layer.offset, layer.bytes), kv_code::coder());
  }
  if (layers == all.size() || layers <= what_.layers_said) return;
  what_.layers_said = layers;
  store_.events_.push_back({StoreEvent::Kind::kLayers, what_.batch, what_.index, layers, false});
}

bool StripedStore::ReadOp::try_again(base::Nanos now) {
  if (what_.tries + 1 >= kTries || now >= what_.deadline || !store_.index_.present(what_.key)) return false;
  ++what_.tries;
  ++store_.counters_.reads_retried;
  const Rank rank{-std::int64_t{what_.priority}, what_.deadline.value, ++store_.last_order_};
  store_.batches_.at(what_.batch).waiting[what_.index] = rank;
  store_.waiting_reads_.emplace(rank, what_);
  return true;
}

void StripedStore::ReadOp::over(StripeRead::End how, base::Nanos now) {
  store_.read_bytes_ -= bytes_;
  const kv_code::StripeReader& reader = machine_.reader();
  StoreCounters& counters = store_.counters_;
  counters.hedges += machine_.hedged() ? 1 : 0;
  store_.count_faults(reader, machine_.missing(), machine_.damaged());
  auto bad = static_cast<ShardSet>(machine_.missing() | machine_.damaged());
  auto kind = StoreEvent::Kind::kRead;
  bool right = how == StripeRead::End::kDone && assembled_ == store_.options_.layout.layers.size();
  if (right) {
    const bool computed = (reader.good() & 0x3ffU) != 0x3ffU;
    counters.reads_degraded += computed ? 1 : 0;
    if (computed) right = reader.slices_match(what_.to);
    if (right && store_.options_.check_block) right = reader.matches(what_.to);
    bad |= reader.to_rewrite();
  }
  store_.note_bad_shards(what_.key, at_, bad);
  if (right) {
    ++counters.reads;
    if (bad != 0) store_.repairs_.push({what_.key, RepairReason::kDamaged, now});
  } else if (how == StripeRead::End::kLate ||
             (how == StripeRead::End::kDone && assembled_ < store_.options_.layout.layers.size())) {
    // Late; or whole, but of another writing than the layers that an earlier try handed out: the next read's.
    ++counters.reads_failed;
    kind = StoreEvent::Kind::kReadFailed;
  } else if (machine_.failed() != 0 && how == StripeRead::End::kUnreadable) {
    // Targets failed: not the entry's fault. The health of targets decides whether it still counts.
    if (try_again(now)) return store_.ops_.end(id);
    const bool outage = store_.index_.present(what_.key);
    ++(outage ? counters.reads_failed : counters.reads_missing);
    kind = outage ? StoreEvent::Kind::kReadFailed : StoreEvent::Kind::kMissing;
  } else {
    // A try that found shards gone may have met a write of another process: what is listed now is tried.
    if (bad != 0 && how == StripeRead::End::kUnreadable && try_again(now)) return store_.ops_.end(id);
    ++counters.reads_missing;
    ++counters.stale;
    counters.blocks_withdrawn += store_.index_.withdraw(what_.key) ? 1 : 0;
    store_.repairs_.push({what_.key, RepairReason::kUnreadable, now + store_.options_.second_look});
    kind = StoreEvent::Kind::kMissing;
  }
  store_.end_read_block(what_.batch, what_.index, kind);
  store_.ops_.end(id);
}

void StripedStore::count_faults(const kv_code::StripeReader& reader, ShardSet missing, ShardSet damaged) {
  counters_.shards_missing += static_cast<std::uint64_t>(std::popcount(missing));
  const ShardSet good = reader.good();
  for (std::uint32_t s = 0; s < kShards; ++s) {
    const auto fault = reader.fault(s);
    if (!fault) {
      if (kv_code::has(damaged, s)) ++counters_.shards_damaged;
      continue;
    }
    switch (*fault) {
      case kv_code::ShardFault::kShort:
        ++counters_.shards_short;
        break;
      case kv_code::ShardFault::kForeign:
        ++counters_.shards_foreign;
        break;
      case kv_code::ShardFault::kCorrupt:
        ++counters_.shards_corrupt;
        break;
    }
  }
  const auto others = static_cast<ShardSet>(reader.to_rewrite() & ~damaged & ~good);
  counters_.shards_other_writing += static_cast<std::uint64_t>(std::popcount(others));
}

void StripedStore::note_bad_shards(BlockKey key, const Places& at, ShardSet bad) {
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (kv_code::has(bad, s)) index_.erased(key, s, at[s]);
}

}  // namespace trimtab::kv_store
