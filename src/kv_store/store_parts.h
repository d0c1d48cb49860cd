#pragma once

#include "kv_store/striped_store.h"

// The operations of a striped store: private to its sources.
namespace trimtab::kv_store {

/// The shard buffers of one operation: `most` at most.
class Buffers {
 public:
  explicit Buffers(BufferPool& pool, std::uint32_t most = kShards) : pool_(pool), left_(most) {
    pool.promise(most);
    ids_.fill(BufferPool::kNone);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    pool_.forgo(left_);
    for (const BufferPool::Id id : ids_)
      if (id != BufferPool::kNone) pool_.release(id);
  }
  BufferPool::Id take(std::uint32_t shard) {
    --left_;
    return ids_[shard] = pool_.take();
  }
  BufferPool::Id id(std::uint32_t shard) const { return ids_[shard]; }
  std::span<std::byte> operator[](std::uint32_t shard) const {
    return ids_[shard] == BufferPool::kNone ? std::span<std::byte>{} : pool_[ids_[shard]];
  }
  /// With what follows it up to a whole unit of the targets.
  std::span<std::byte> whole(std::uint32_t shard) const { return pool_.whole(ids_[shard]); }

 private:
  BufferPool& pool_;
  std::uint32_t left_;  // promised and not taken yet
  std::array<BufferPool::Id, kShards> ids_{};
};

/// What the state machine of a read or a repair is told of an answer.
StripeRead::Event event_of(const Answer& answer, const Buffers& buffers);

struct StripedStore::Batch {
  std::vector<OpId> ops;  // by index; of those under way
  std::vector<Rank> waiting;
  std::vector<bool> over;
  std::uint32_t left = 0;
};

struct StripedStore::WaitingRead {
  Handle batch = 0;
  std::uint32_t index = 0;
  BlockKey key;
  std::span<std::byte> to;
  std::int32_t priority = 0;
  base::Nanos deadline{0};
  std::uint32_t tries = 0;
  std::uint64_t writing = 0;  // whose layers were handed out by an earlier try
  std::uint32_t layers_said = 0;
};

struct StripedStore::WaitingWrite {
  Handle handle = 0;
  BlockKey key;
  std::span<const std::byte> block;
  base::Nanos deadline{0};
};

class StripedStore::ReadOp final : public Op {
 public:
  ReadOp(StripedStore& store, WaitingRead what, const Places& at, StripeRead::Plan plan)
      : store_(store),
        what_(std::move(what)),
        at_(at),
        buffers_(store.pool_),
        machine_(store.options_.layout, what_.key, store.pieces_, std::move(plan)) {}

  void start(base::Nanos now) {
    machine_.place_into(what_.to, what_.layers_said);
    act(machine_.step({}, now), now);
  }
  void answered(const Answer& answer, base::Nanos now) override;
  void time(base::Nanos now) override;
  void cancel(base::Nanos now);

 private:
  void act(const StripeRead::Actions& actions, base::Nanos now);
  void hand_out(std::uint32_t layers);
  void over(StripeRead::End how, base::Nanos now);
  bool try_again(base::Nanos now);

  StripedStore& store_;
  WaitingRead what_;
  Places at_;
  Buffers buffers_;
  std::array<kv_target::Loan, kShards> lent_;
  StripeRead machine_;
  std::uint64_t bytes_ = 0;
  std::uint32_t assembled_ = 0;
  base::Nanos armed_ = base::kForever;  // when `time` will be called
};

class StripedStore::WriteOp final : public Op {
 public:
  WriteOp(StripedStore& store, BlockKey key, const StripeWrite::Plan& plan)
      : store_(store), key_(key), places_(store.map_.of(key)), buffers_(store.pool_), machine_(plan) {}

  void start(std::span<const std::byte> block, base::Nanos now);
  void answered(const Answer& answer, base::Nanos now) override;
  void time(base::Nanos now) override;
  void cancel(base::Nanos now);

  std::vector<Handle> handles;  // who waits for it

 private:
  friend class StripedStore;
  void act(const StripeWrite::Actions& actions, base::Nanos now);

  StripedStore& store_;
  BlockKey key_;
  Places places_;
  Buffers buffers_;
  StripeWrite machine_;
};

/// Shards of a block on their way out. Until it is known what became of them, a target may still tell of when
/// they were written, and that must not make the block present again.
class StripedStore::EraseOp final : public Op {
 public:
  EraseOp(StripedStore& store, BlockKey key) : store_(store), key_(key) { ++store_.erasing_[key_]; }
  ~EraseOp() override {
    if (const auto found = store_.erasing_.find(key_); --found->second == 0) store_.erasing_.erase(found);
  }
  void answered(const Answer&, base::Nanos) override {
    if (--left == 0) store_.ops_.end(id);
  }
  void time(base::Nanos) override {}
  std::uint32_t left = 0;  // answers

 private:
  StripedStore& store_;
  BlockKey key_;
};

/// Reads a block in the background, and writes what it lacks.
class StripedStore::RepairOp final : public Op {
 public:
  RepairOp(StripedStore& store, const RepairQueue::Job& job, bool scrub, const Places& at,
           StripeRead::Plan plan)
      : store_(store),
        job_(job),
        scrub_(scrub),
        at_(at),
        buffers_(store.pool_),
        rebuilt_(store.pool_, kv_code::kParity),
        machine_(store.options_.layout, job.key, store.pieces_, std::move(plan)) {}

  void start(base::Nanos now) { act(machine_.step({}, now), now); }
  void answered(const Answer& answer, base::Nanos now) override;
  void time(base::Nanos now) override;

 private:
  friend class StripedStore;
  void act(const StripeRead::Actions& actions, base::Nanos now);
  void write_what_lacks(base::Nanos now);
  void unreadable(base::Nanos now);

  StripedStore& store_;
  RepairQueue::Job job_;
  bool scrub_;
  Places at_, to_{};
  Buffers buffers_, rebuilt_;
  StripeRead machine_;
  Walk::Found found_;
  ShardSet writing_ = 0;
  bool failed_ = false;
};

}  // namespace trimtab::kv_store
