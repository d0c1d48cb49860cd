#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kv_store/channels.h"
#include "kv_store/map_keeper.h"
#include "kv_store/repair_queue.h"
#include "kv_store/store_index.h"
#include "kv_store/store_options.h"
#include "kv_store/stripe_read.h"
#include "kv_store/stripe_write.h"
#include "kv_store/walk.h"

namespace trimtab::kv_store {

class Buffers;

/// Blocks in ten data and two parity shards over many targets (docs/kv.md, "The striped pool").
///
/// Everything is asked for at once and done by `poll`, which says what happened; nothing waits. One thread
/// owns a store. It owns its targets, and destroys them before the memory that they may still write into.
///
/// Promises:
/// - A block that was read is whole, verified, and of one writing; so is every layer said to be ready.
/// - After `cancel`, and after a read's last event, its destination is not touched any more.
/// - A write that succeeded is durable, as far as its targets are, in at least ten shards (`write_policy`).
/// - `present` is true only of blocks with ten shards at targets believed alive. What cannot be read all the
///   same is withdrawn from the index when that is found, and counted (`stale`).
class StripedStore {
 public:
  using Handle = std::uint64_t;

  /// Follows all targets' changes before it returns. Errors: options that cannot work; no target; more than
  /// 512.
  static base::Result<std::unique_ptr<StripedStore>> open(
      std::vector<std::unique_ptr<kv_target::Target>> targets, StoreOptions options, base::Nanos now);
  ~StripedStore();

  struct BlockRead {
    BlockKey key;
    std::span<std::byte> to;  // layout.block_bytes; the caller's until the block's last event
  };
  /// `priority`: higher first; then the earlier deadline, then the earlier call. Deadline: an instant;
  /// kForever: `read_timeout` from now.
  Handle read(std::span<const BlockRead> blocks, base::Nanos deadline, std::int32_t priority,
              base::Nanos now);
  /// `block` is the caller's until the event. Present blocks are answered at once; one that is being written
  /// is waited for.
  Handle write(BlockKey key, std::span<const std::byte> block, base::Nanos deadline, base::Nanos now);
  /// Ends what is left of a read without further events.
  void cancel(Handle handle, base::Nanos now);
  /// Not present from now on; shards at targets that are dead now are found and erased by a later walk.
  void erase(std::span<const BlockKey> keys, base::Nanos now);

  /// Does what can be done and appends what happened.
  void poll(base::Nanos now, std::vector<StoreEvent>& events);
  /// Readable when `poll` may have something to do before `next_wake`.
  std::vector<int> wake_fds();
  base::Nanos next_wake();
  /// Nothing asked for is left to do (background work apart).
  bool idle() const { return batches_.empty() && writes_by_handle_.empty() && waiting_writes_.empty(); }

  StoreIndex::Answer exists(std::span<const BlockKey> keys) const { return index_.exists(keys); }
  std::uint32_t leading(std::span<const BlockKey> keys) const { return index_.leading(keys); }
  const StoreIndex& index() const { return index_; }
  const PlaceMap& map() const { return map_; }
  /// How many targets a write may lack and count all the same.
  std::uint32_t writes_may_lack() const {
    return options_.write_policy == WritePolicy::kAll ? 0 : map_.losses();
  }
  const StoreCounters& counters() const { return counters_; }
  const Channels& channels() const { return channels_; }
  /// Why a target's requests fail at present; empty while all is well.
  std::string trouble(TargetId id) { return channels_.target(id).trouble(); }
  /// It takes writes: all is well, or erasing makes room for them.
  bool takes_writes(TargetId id) {
    return channels_.usable(id) && (trouble(id).empty() || channels_.target(id).lacks_room());
  }
  /// Of all targets that answer.
  kv_target::Space space();
  base::Result<kv_target::Space> space(TargetId id) { return channels_.target(id).space(); }

  /// Background work. One walk at a time: `start_walk` ends the one before. A rebuild starts by itself when a
  /// target comes back or the map changes.
  void start_walk(WalkKind kind, base::Nanos now);
  base::Status resume_walk(const WalkCursor& cursor, base::Nanos now);
  const std::optional<Walk>& walk() const { return walk_; }
  std::size_t repairs_waiting() const { return repairs_.size() + repairs_under_way_; }
  /// Shards with new places whose old copies were kept for readers with an older map: erases those.
  void retire_old_copies(base::Nanos now);

  // Changes of the map (store_map.cpp). Where the store keeps its map at the targets
  // (`StoreOptions::record`), a change counts, and shards begin to move, once more than half of them have it:
  // `map_settled`. Places are the names by which other processes of the pool open the same targets.

  /// Another target in a lost one's place; what belongs to it is written to it.
  void replace(TargetId id, std::unique_ptr<kv_target::Target> target, base::Nanos now,
               const std::string& place = {});
  /// Lost for good: their shards get places at others (13 targets or more).
  base::Status give_up(std::span<const TargetId> dead, base::Nanos now);
  /// More targets, or `leaving` ones to be emptied: few shards move, and all stay readable meanwhile.
  base::Status expand(std::vector<std::unique_ptr<kv_target::Target>> more,
                      std::span<const std::uint32_t> racks, base::Nanos now,
                      std::span<const std::string> places = {});
  base::Status drain(std::span<const TargetId> leaving, base::Nanos now);
  /// Takes over a record that another process wrote (`newer_map`): `more` are its targets beyond ours,
  /// `replaced` those whose `life` is another one. Errors: it does not fit, or gives no map.
  base::Status adopt(const MapRecord& newer, std::vector<std::unique_ptr<kv_target::Target>> more,
                     std::vector<std::pair<TargetId, std::unique_ptr<kv_target::Target>>> replaced,
                     base::Nanos now);
  /// Null: the map is kept nowhere.
  const MapKeeper* map_keeper() const { return keeper_ ? &*keeper_ : nullptr; }
  /// It left the pool, and its number stays.
  bool has_left(TargetId id) const {
    return keeper_ && keeper_->record().members[id].state == MapMember::State::kGone;
  }
  bool map_settled() const { return !keeper_ || keeper_->settled(); }
  const MapRecord* newer_map() const { return keeper_ && keeper_->newer() ? &*keeper_->newer() : nullptr; }
  /// Old copies of moved shards that will be erased.
  std::size_t old_copies() const { return old_copies_.size(); }

 private:
  class ReadOp;
  class WriteOp;
  class RepairOp;
  class EraseOp;
  class MapOp;
  struct Batch;
  struct WaitingRead;
  struct WaitingWrite;
  /// Higher priority first, then deadline, then order.
  using Rank = std::tuple<std::int64_t, std::int64_t, std::uint64_t>;
  struct Timer {
    base::Nanos at;
    OpId op;
    bool operator>(const Timer& other) const { return at > other.at; }
  };

  StripedStore(std::vector<std::unique_ptr<kv_target::Target>> targets, StoreOptions options, PlaceMap map,
               std::size_t read_unit);

  void pump(base::Nanos now);
  bool dispatch(base::Nanos now);
  void dispatch_all(base::Nanos now);
  bool much_to_tell() const;
  void fire_timers(base::Nanos now);
  void turned(const Channels::Turn& turn, base::Nanos now);
  bool follow(TargetId id, base::Nanos now);
  void follow_all(base::Nanos now);
  void arm(OpId op, base::Nanos at);

  // store_map.cpp
  void map_changed(PlaceMap map, base::Nanos now);
  base::Status fits(const MapRecord& record);
  void join(std::unique_ptr<kv_target::Target> target, base::Nanos now);
  void seat(TargetId id, std::unique_ptr<kv_target::Target> target, base::Nanos now);
  void surplus(BlockKey key, std::uint8_t shard, TargetId target, base::Nanos now);
  void keep_map(base::Nanos now);
  void map_answered(const MapOp& op, const Answer& answer, base::Nanos now);
  void end_drains(base::Nanos now);
  void retire_when_confirmed(base::Nanos now);

  void expire_waiting_reads(base::Nanos now);
  bool start_read(base::Nanos now);
  void end_read_block(Handle batch, std::uint32_t index, StoreEvent::Kind kind);
  /// Asks for all pieces of these shards, into buffers that it takes; how many bytes that is. In the
  /// foreground other blocks' first layers go before the rest of this one, and targets may lend.
  std::uint64_t ask_for(ShardSet shards, BlockKey key, const Places& at, OpId op, Buffers& buffers,
                        bool foreground, base::Nanos now);
  StripeRead::Plan read_plan(const Places& at, bool background, base::Nanos deadline) const;
  void count_faults(const kv_code::StripeReader& reader, ShardSet missing, ShardSet damaged);
  void note_bad_shards(BlockKey key, const Places& at, ShardSet bad);

  bool start_write(base::Nanos now);
  void end_write(WriteOp& op, StripeWrite::End how, base::Nanos now);
  void submit_erases(BlockKey key, const Places& at, ShardSet shards, base::Nanos now);

  bool start_repair(base::Nanos now);
  bool start_repair_of(const RepairQueue::Job& job, bool scrub, base::Nanos now);
  bool needs_repair(BlockKey key) const;
  ShardSet misplaced(BlockKey key, const Places& at) const;
  void end_repair(RepairOp& op, base::Nanos now);

  StoreOptions options_;
  Pieces pieces_;
  PlaceMap map_;
  StoreIndex index_;
  BufferPool pool_;
  std::map<BlockKey, std::uint32_t> erasing_;  // how many EraseOps; outlives them
  OpTable ops_;
  StoreCounters counters_;
  std::vector<StoreEvent> events_;
  std::vector<Answer> answers_;
  std::vector<std::uint64_t> order_;  // in which answers are told: operation, then answer
  std::vector<Channels::Turn> turns_;
  std::vector<kv_target::Cursor> cursors_;
  base::Nanos next_feed_{0}, last_poll_{0};
  bool fresh_ = false;  // something was asked for since the last poll
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;

  Handle last_handle_ = 0;
  std::uint64_t last_order_ = 0;
  std::map<Handle, Batch> batches_;
  std::map<Rank, WaitingRead> waiting_reads_;
  std::uint64_t read_bytes_ = 0;
  std::map<std::uint64_t, WaitingWrite> waiting_writes_;  // by order
  std::map<Handle, BlockKey> writes_by_handle_;
  std::map<BlockKey, OpId> writing_;
  std::uint32_t write_ops_ = 0;

  RepairQueue repairs_;
  ByteRate repair_rate_;
  std::map<BlockKey, OpId> repairing_;
  std::size_t repairs_under_way_ = 0;
  std::optional<Walk> walk_;
  std::vector<std::uint8_t> skipped_;  // by group: the survivor a rebuild need not read
  struct OldCopy {
    BlockKey key;
    std::uint8_t shard = 0;
    TargetId target = 0;
  };
  std::vector<OldCopy> old_copies_;
  base::Nanos old_copies_until_{0};  // the latest of them may be erased then
  bool confirming_ = false;          // that our map is the newest, before old copies are erased
  std::optional<MapKeeper> keeper_;
  bool walk_due_ = false;         // once the changed map is settled
  base::Nanos drain_look_at_{0};  // when the next look whether leaving targets are empty is due

  Channels channels_;  // last: its targets end before all else
};

}  // namespace trimtab::kv_store
