#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kv_store/store_parts.h"

namespace trimtab::kv_store {

using kv_code::kData;

namespace {
constexpr std::uint32_t kTries = 8;
constexpr base::Nanos kPause{1'000'000'000};  // times the tries so far
constexpr std::uint32_t kBuffersNeeded = kShards + kv_code::kParity;
}  // namespace

/// Shards that should be where the map says and are not, though the target there is well.
ShardSet StripedStore::misplaced(BlockKey key, const Places& at) const {
  const Places& home = map_.of(key);
  ShardSet set = 0;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    const bool there = at[s] == home[s];
    if (!there && index_.alive(home[s]) && channels_.usable(home[s])) set |= static_cast<ShardSet>(1U << s);
  }
  return set;
}

bool StripedStore::needs_repair(BlockKey key) const {
  const auto at = index_.find(key);
  return at && misplaced(key, *at) != 0;
}

void StripedStore::start_walk(WalkKind kind, base::Nanos now) {
  WalkCursor cursor;
  fresh_ = true;
  cursor.kind = kind;
  cursor.map_version = map_.stripes().version;
  walk_.emplace(cursor, index_.keys(), now);
}

base::Status StripedStore::resume_walk(const WalkCursor& cursor, base::Nanos now) {
  if (cursor.map_version != map_.stripes().version)
    return base::fail(base::Code::kInvalidArgument,
                      "the walk belongs to version " + std::to_string(cursor.map_version) +
                          " of the map, which is now at " + std::to_string(map_.stripes().version) +
                          ": start it anew",
                      "kv_store");
  fresh_ = true;
  walk_.emplace(cursor, index_.keys(), now);
  return {};
}

bool StripedStore::start_repair(base::Nanos now) {
  if (repairs_under_way_ >= options_.repair_jobs || !repair_rate_.ready(now)) return false;
  if (repairs_.empty() && (!walk_ || walk_->done())) return false;
  if (!map_settled()) return false;  // nothing moves by a map that others cannot find
  if (pool_.available() < kShards + kBuffersNeeded) return false;
  if (const auto job = repairs_.pop(now)) {
    if (writing_.contains(job->key) || repairing_.contains(job->key)) {
      repairs_.push({job->key, job->reason, now + kPause, job->tries});
      return true;
    }
    return start_repair_of(*job, false, now);
  }
  if (!walk_) return false;
  const bool scrub = walk_->cursor().kind == WalkKind::kScrub;
  // A rebuild passes over what lacks nothing, many in one go.
  for (std::uint32_t looked = 0; looked < 1'024; ++looked) {
    const auto key = walk_->next();
    if (!key) return false;
    if (writing_.contains(*key) || repairing_.contains(*key) || (!scrub && !needs_repair(*key))) {
      walk_->finished(*key, {});
      continue;
    }
    return start_repair_of({*key, scrub ? RepairReason::kDamaged : RepairReason::kLacking, now}, scrub, now);
  }
  return true;
}

bool StripedStore::start_repair_of(const RepairQueue::Job& job, bool scrub, base::Nanos now) {
  const auto at = index_.stranger(job.key) ? std::nullopt : index_.find(job.key);
  if (!at) {
    if (walk_) walk_->finished(job.key, {});
    return true;
  }
  StripeRead::Plan plan = read_plan(*at, true, now + options_.read_timeout);
  plan.all = scrub || job.reason != RepairReason::kLacking;
  plan.hedge_after = base::kForever;
  // Of eleven survivors the plan of a rebuild says which one is left alone, so that all read equally much.
  const std::uint32_t group = map_.group_of(job.key);
  if (!plan.all && plan.order.size() > kData && group < skipped_.size())
    std::stable_partition(plan.order.begin(), plan.order.end(),
                          [&](std::uint8_t s) { return s != skipped_[group]; });
  RepairOp& op = ops_.add(std::make_unique<RepairOp>(*this, job, scrub, *at, std::move(plan)));
  repairing_.emplace(job.key, op.id);
  ++repairs_under_way_;
  op.start(now);
  return true;
}

void StripedStore::RepairOp::answered(const Answer& answer, base::Nanos now) {
  if (answer.verb == kv_target::Verb::kWrite) {
    const auto bit = static_cast<ShardSet>(1U << answer.ticket.shard);
    if ((writing_ & bit) == 0) return;
    writing_ &= static_cast<ShardSet>(~bit);
    const std::uint32_t s = answer.ticket.shard;
    if (answer.outcome == kv_target::Outcome::kDone) {
      store_.index_.put(job_.key, s, to_[s], store_.map_.of(job_.key)[s]);
      ++found_.shards_written;
      if (at_[s] != kNowhere && at_[s] != to_[s])
        store_.surplus(job_.key, static_cast<std::uint8_t>(s), at_[s], now);
    } else {
      failed_ = true;
    }
    if (writing_ == 0) store_.end_repair(*this, now);
    return;
  }
  act(machine_.step(event_of(answer, buffers_), now), now);
}

void StripedStore::RepairOp::time(base::Nanos now) {
  if (machine_.over()) return;  // its writes have their targets' timeouts
  StripeRead::Event event;
  event.kind = StripeRead::Event::Kind::kTime;
  act(machine_.step(event, now), now);
}

void StripedStore::RepairOp::act(const StripeRead::Actions& actions, base::Nanos now) {
  found_.bytes += store_.ask_for(actions.submit, job_.key, at_, id, buffers_, false, now);
  if (!actions.ended) return store_.arm(id, actions.wake);
  store_.count_faults(machine_.reader(), machine_.missing(), machine_.damaged());
  auto bad = static_cast<ShardSet>(machine_.missing() | machine_.damaged());
  if (*actions.ended == StripeRead::End::kDone) bad |= machine_.reader().to_rewrite();
  found_.shards_bad = static_cast<std::uint32_t>(std::popcount(bad));
  store_.note_bad_shards(job_.key, at_, bad);
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (kv_code::has(bad, s)) at_[s] = kNowhere;
  if (*actions.ended == StripeRead::End::kDone) return write_what_lacks(now);
  unreadable(now);
}

void StripedStore::RepairOp::write_what_lacks(base::Nanos now) {
  const kv_code::StripeReader& reader = machine_.reader();
  to_ = store_.map_.of(job_.key);
  const ShardSet wanted = store_.misplaced(job_.key, at_);
  const auto lost = static_cast<ShardSet>(wanted & ~reader.good());
  kv_code::Shards out;
  for (std::uint32_t s = 0; s < kShards; ++s)
    if (kv_code::has(lost, s)) out[s] = (rebuilt_.take(s), rebuilt_[s]);
  if (lost != 0) reader.rebuild(lost, out, kv_code::coder());
  writing_ = wanted;
  if (wanted == 0) return store_.end_repair(*this, now);
  for (std::uint8_t s = 0; s < kShards; ++s) {
    if (!kv_code::has(wanted, s)) continue;
    const Buffers& from = kv_code::has(lost, s) ? rebuilt_ : buffers_;
    Channels::Outgoing write;
    write.request.verb = kv_target::Verb::kWrite;
    write.request.name = {job_.key, s};
    write.request.content = from[s];
    write.ticket = {id, s, 0};
    write.buffer = from.id(s);
    found_.bytes += from[s].size();
    store_.channels_.send(to_[s], write, now);
  }
}

void StripedStore::RepairOp::unreadable(base::Nanos now) {
  found_.unreadable = true;
  const bool all_well =
      machine_.failed() == 0 && std::ranges::all_of(store_.map_.of(job_.key), [&](TargetId t) {
        return store_.index_.alive(t) && store_.channels_.usable(t);
      });
  StoreCounters& counters = store_.counters_;
  if (!all_well) {
    failed_ = true;  // a target that comes back may bring what is missing
  } else if (job_.reason != RepairReason::kUnreadable) {
    counters.blocks_withdrawn += store_.index_.withdraw(job_.key) ? 1 : 0;
    store_.repairs_.push({job_.key, RepairReason::kUnreadable, now + store_.options_.second_look});
  } else {
    // The second look: no write of anybody is under way any more. What is left is nobody's block.
    ++counters.blocks_unreadable;
    store_.submit_erases(job_.key, store_.map_.of(job_.key), kv_code::kAllShards, now);
    store_.index_.erase(job_.key);
  }
  store_.end_repair(*this, now);
}

void StripedStore::end_repair(RepairOp& op, base::Nanos now) {
  repairing_.erase(op.job_.key);
  --repairs_under_way_;
  repair_rate_.spend(op.found_.bytes);
  ++counters_.repairs;
  counters_.shards_repaired += op.found_.shards_written;
  if (op.failed_) {
    ++counters_.repairs_failed;
    if (op.job_.tries + 1 < kTries && !op.scrub_)
      repairs_.push({op.job_.key, op.job_.reason, now + kPause * (op.job_.tries + 1), op.job_.tries + 1});
  }
  if (walk_) walk_->finished(op.job_.key, op.found_);
  ops_.end(op.id);
}

}  // namespace trimtab::kv_store
