#include "kv_store/striped_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv_store/store_parts.h"

namespace trimtab::kv_store {

namespace {

constexpr std::uint32_t kBuffersLeast = 64;
/// Reads that begin together, so that a target is asked for several shards at once and finds them faster.
constexpr std::uint32_t kTogether = 8;
/// So many events are told before more is done: a fast target answers as fast as it is asked, and whoever
/// waits for a block would hear of it with the last. Layers are told at once.
constexpr std::size_t kToldTogether = 128;

/// The beginnings of all its pages: what follows, the processor fetches by itself.
void prefetch(const Answer& answer) {
  if (!answer.lent) return;
  constexpr std::uintptr_t kPage = 4'096, kLine = 64;
  const auto begin = reinterpret_cast<std::uintptr_t>(answer.lent.get());
  for (std::uintptr_t at = begin; at < begin + answer.bytes; at = (at / kPage + 1) * kPage)
    for (std::uintptr_t line = 0; line < 4; ++line)
      __builtin_prefetch(reinterpret_cast<const void*>(at + line * kLine));
}

std::uint32_t buffers_of(const StoreOptions& options, std::size_t unit) {
  const std::uint64_t each = BufferPool::padded(options.layout.shard_bytes, unit);
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(options.memory_bytes / each, kBuffersLeast));
}

base::Status check(const StoreOptions& options, std::size_t targets) {
  const auto refuse = [](std::string message) {
    return base::fail(base::Code::kInvalidArgument, std::move(message), "kv_store");
  };
  if (options.layout.shard_bytes == 0) return refuse("a store needs the layout of its blocks");
  if (options.memory_bytes / options.layout.shard_bytes < kBuffersLeast)
    return refuse(fmt::format("memory_bytes = {}; {} shards of {} bytes are the least", options.memory_bytes,
                              kBuffersLeast, options.layout.shard_bytes));
  if (options.reads_at_start < kv_code::kData || options.reads_at_start > kShards)
    return refuse(fmt::format("reads_at_start = {}; 10 to 12", options.reads_at_start));
  if (options.repair_jobs == 0 || options.feed_page == 0 || options.repair_bytes_per_second < 1'000'000)
    return refuse(
        fmt::format("repair_jobs = {}, feed_page = {}, repair_bytes_per_second = {}; at least 1, 1 "
                    "and 1000000",
                    options.repair_jobs, options.feed_page, options.repair_bytes_per_second));
  if (targets == 0) return refuse("a store needs a target");
  return {};
}

}  // namespace

StripedStore::StripedStore(std::vector<std::unique_ptr<kv_target::Target>> targets, StoreOptions options,
                           PlaceMap map, std::size_t read_unit)
    : options_(std::move(options)),
      pieces_(make_pieces(options_.layout, options_.first_layers, read_unit)),
      map_(std::move(map)),
      index_(static_cast<std::uint32_t>(targets.size())),
      pool_(options_.layout.shard_bytes, buffers_of(options_, read_unit), read_unit),
      cursors_(targets.size()),
      repairs_(options_.repair_queue),
      repair_rate_(options_.repair_bytes_per_second),
      channels_(std::move(targets), options_.targets, pool_, ops_) {
  pool_.prepare(options_.buffers_ready);
  if (!options_.record || !options_.keeps_record) return;
  keeper_.emplace(*options_.record, channels_.count());
  walk_due_ = true;  // goes on with what an earlier life left undone: shards that are home are passed over
}

StripedStore::~StripedStore() = default;

base::Result<std::unique_ptr<StripedStore>> StripedStore::open(
    std::vector<std::unique_ptr<kv_target::Target>> targets, StoreOptions options, base::Nanos now) {
  TRIMTAB_TRY(check(options, targets.size()));
  for (const auto& target : targets) {
    if (target->limits().shard_bytes < options.layout.shard_bytes)
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("shards of {} bytes; a target takes at most {}",
                                    options.layout.shard_bytes, target->limits().shard_bytes),
                        "kv_store");
  }
  if (options.record && options.record->members.size() != targets.size())
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("the pool's map has {} targets and {} are given",
                                  options.record->members.size(), targets.size()),
                      "kv_store");
  auto map = options.record ? options.record->map()
                            : PlaceMap::make(static_cast<std::uint32_t>(targets.size()), options.racks);
  if (!map) return tl::unexpected<base::Error>(map.error());
  // A quarter of the memory at most waits for one target that lets go of nothing.
  options.targets.target_bytes_in_flight =
      std::min<std::uint64_t>(options.targets.target_bytes_in_flight, options.memory_bytes / 4);
  std::uint64_t read_unit = 1;
  for (const auto& target : targets) read_unit = std::max(read_unit, target->limits().read_unit_bytes);
  std::unique_ptr<StripedStore> store(
      new StripedStore(std::move(targets), std::move(options), std::move(*map), read_unit));
  store->follow_all(now);
  return store;
}

bool StripedStore::follow(TargetId id, base::Nanos now) {
  kv_target::Cursor& cursor = cursors_[id];
  bool told_anew = false;
  for (bool more = true; more;) {
    const auto answer = channels_.target(id).changes(cursor, options_.feed_page);
    if (!answer) return false;
    if (answer->complete) {
      told_anew = cursor != kv_target::Cursor{};
      index_.forget(id);
    }
    for (const kv_target::Change& change : answer->changes) {
      const BlockKey key = change.name.key;
      const std::uint32_t shard = change.name.shard;
      if (keeper_ && change.name == kMapName) keeper_->doubt(id);
      if (shard >= kShards) continue;
      if (change.bytes == 0) {
        index_.erased(key, shard, id);
      } else if (change.bytes != options_.layout.shard_bytes) {
        index_.put_stranger(key, shard, id);
      } else if (!writing_.contains(key) && !erasing_.contains(key)) {  // own writes count when durable
        // A block was erased and written again while the target was away, and it still has the old shard.
        if (told_anew && index_.surprising(key, shard)) repairs_.push({key, RepairReason::kDamaged, now});
        const TargetId other = index_.put(key, shard, id, map_.of(key)[shard]);
        if (keeper_ && other != kNowhere) surplus(key, change.name.shard, other, now);
      }
    }
    cursor = answer->next;
    more = answer->more;
  }
  next_feed_ = std::max(next_feed_, now);
  return true;
}

void StripedStore::follow_all(base::Nanos now) {
  if (now < next_feed_) return;
  for (TargetId id = 0; id < channels_.count(); ++id)
    if (channels_.usable(id) && index_.alive(id) && !follow(id, now))
      channels_.failed(id, now, answers_, turns_);
  next_feed_ = now + options_.feed_interval;
}

void StripedStore::turned(const Channels::Turn& turn, base::Nanos now) {
  if (turn.action == TargetHealth::Action::kDied) {
    ++counters_.targets_died;
    index_.set_alive(turn.target, false);
    return;
  }
  // It answers; what it holds counts once its changes are known to the end.
  if (!follow(turn.target, now)) {
    while (channels_.usable(turn.target)) channels_.failed(turn.target, now, answers_, turns_);
    return;
  }
  ++counters_.targets_revived;
  if (keeper_) keeper_->doubt(turn.target);
  index_.set_alive(turn.target, true);
  if (!walk_ || walk_->done() || walk_->cursor().kind == WalkKind::kRebuild)
    start_walk(WalkKind::kRebuild, now);
}

bool StripedStore::dispatch(base::Nanos now) {
  channels_.flush(now);
  std::vector<Answer> answers;
  std::vector<Channels::Turn> turns;
  answers.swap(answers_);
  turns.swap(turns_);
  channels_.poll(now, answers, turns);
  const bool any = !answers.empty() || !turns.empty();
  // Deaths first: whoever retries because of one must not be sent there again.
  for (const Channels::Turn& turn : turns) turned(turn, now);
  // One operation after the other: its shards are put together while caches hold them.
  order_.clear();
  for (std::uint32_t i = 0; i < answers.size(); ++i)
    order_.push_back(std::uint64_t{answers[i].ticket.op.slot} << 32 | i);
  if (answers.size() > kShards) std::ranges::sort(order_);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    // The next one's memory is looked up while this one is worked on.
    if (i + 1 < order_.size()) prefetch(answers[static_cast<std::uint32_t>(order_[i + 1])]);
    const Answer& answer = answers[static_cast<std::uint32_t>(order_[i])];
    if (Op* op = ops_.find(answer.ticket.op)) op->answered(answer, now);
  }
  ops_.sweep();
  answers.clear();
  turns.clear();
  if (answers_.empty()) answers_.swap(answers);  // keeps its memory
  if (turns_.empty()) turns_.swap(turns);
  return any;
}

void StripedStore::arm(OpId op, base::Nanos at) {
  if (at != base::kForever) timers_.push({at, op});
}

void StripedStore::fire_timers(base::Nanos now) {
  while (!timers_.empty() && (timers_.top().at <= now || ops_.find(timers_.top().op) == nullptr)) {
    const Timer timer = timers_.top();
    timers_.pop();
    if (Op* op = ops_.find(timer.op)) op->time(now);
  }
  ops_.sweep();
}

void StripedStore::pump(base::Nanos now) {
  if (keeper_) keep_map(now);
  dispatch_all(now);
  fire_timers(now);
  expire_waiting_reads(now);
  bool more = true;
  do {
    more = start_read(now);
    // First layers are asked for before the rest: for that their reads must all have begun. Otherwise a few
    // at a time, which targets that answer at once have answered before the next begin.
    for (std::uint32_t n = 1; (pieces_.count() > 1 || n < kTogether) && start_read(now);) ++n;
    more |= start_write(now);
    more |= start_repair(now);
    dispatch_all(now);
  } while (more && !much_to_tell());
  fresh_ |= much_to_tell();
}

bool StripedStore::much_to_tell() const {
  return events_.size() >= (pieces_.count() > 1 ? 1 : kToldTogether);
}

void StripedStore::dispatch_all(base::Nanos now) {
  while (dispatch(now) && !much_to_tell()) {
  }
}

void StripedStore::poll(base::Nanos now, std::vector<StoreEvent>& events) {
  last_poll_ = now;
  fresh_ = false;
  follow_all(now);
  pump(now);
  events.insert(events.end(), events_.begin(), events_.end());
  events_.clear();
}

std::vector<int> StripedStore::wake_fds() {
  std::vector<int> fds;
  for (TargetId id = 0; id < channels_.count(); ++id)
    if (const int fd = channels_.target(id).wake_fd(); fd >= 0) fds.push_back(fd);
  return fds;
}

base::Nanos StripedStore::next_wake() {
  if (!events_.empty() || fresh_) return base::Nanos{0};
  base::Nanos wake = std::min(next_feed_, channels_.next_wake());
  if (!timers_.empty()) wake = std::min(wake, timers_.top().at);
  if (keeper_) wake = std::min(wake, keeper_->wake(last_poll_));
  if (repairs_under_way_ < options_.repair_jobs && map_settled()) {
    const bool walking = walk_ && walk_->more();
    const base::Nanos job = walking ? base::Nanos{0} : repairs_.quiet_until();
    const base::Nanos at = std::max(job, repair_rate_.ready_at(last_poll_));
    // What could begin by now waits for memory or for another operation, and that ends with an answer.
    if (job != base::kForever && at > last_poll_) wake = std::min(wake, at);
  }
  return wake;
}

kv_target::Space StripedStore::space() {
  kv_target::Space all;
  for (TargetId id = 0; id < channels_.count(); ++id) {
    if (!channels_.usable(id)) continue;
    const auto one = channels_.target(id).space();
    if (!one) continue;
    all.capacity_bytes += one->capacity_bytes;
    all.used_bytes += one->used_bytes;
    all.shards += one->shards;
    all.caller_bytes_written += one->caller_bytes_written;
    all.device_bytes_written += one->device_bytes_written;
  }
  return all;
}

}  // namespace trimtab::kv_store
