#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/kv_arena.h"
#include "engine/rank_role.h"
#include "kv/key_chain.h"
#include "kv/state_slots.h"

namespace trimtab::engine {

struct DecodeRankConfig {
  std::int64_t context_tokens = 0;  // an answer ends (kLength) when prompt and answer fill it
  bool logits_checksums = true;
};

/// The decode side of a rank: continuous batching. Every step draws one token for each running request;
/// requests join and leave between steps. A request grows by a block when its last one is full; each block
/// that fills goes to the pool under the continued key chain. An answer's last token is
/// told once its blocks are stored, so that the next turn of the conversation finds them all. When no block
/// is left, policy::choose_victim says who yields: its full blocks are in the pool first, then its room is
/// free and the control process queues it again.
class DecodeRank final : public RankRole {
 public:
  DecodeRank(const DecodeRankConfig& config, const LlamaShape& shape, const KvArena& arena, BlockMover& mover,
             Outbox& outbox, RankState* state = nullptr);

  base::Status on_frame(const ipc::Frame& frame) override;
  void on_moved(MoveDone done) override;
  void on_state(StateDone) override {}  // a decode rank gives snapshots away and awaits nothing
  Proposal propose() override;
  std::span<const Segment> plan(base::Nanos budget) override;
  bool idle() const override { return requests_.empty() && moves_ == 0; }
  std::uint32_t blocks_free() const override {
    return static_cast<std::uint32_t>(tables_.allocator().free());
  }
  void finish_step(const Forward& forward) override;

  const kv::BlockAllocator& blocks() const { return tables_.allocator(); }
  std::size_t requests() const { return requests_.size(); }

 private:
  enum class Stage : std::uint8_t { kReserved, kRunning, kFinishing, kYielding, kAborted };
  struct Request {
    std::uint64_t stay = 0;  // in order of arrival here
    Stage stage = Stage::kReserved;
    wire::DecodeStart start;  // `tokens` grows
    std::optional<kv::KeyChain> chain;
    std::vector<model::BlockKey> keys;  // of all full blocks of the tokens
    std::uint32_t generated = 0;
    std::uint32_t jobs = 0;  // of the mover, under way
    std::string yield_reason;
    wire::TokenOut last;  // kFinishing: kept back until the answer's blocks are in the pool
  };

  void on_reserve(const wire::DecodeReserve& message);
  void on_start(wire::DecodeStart message);
  void on_abort(model::RequestId id);
  /// False while it must wait a step for memory that is about to be free.
  bool ensure_room(model::RequestId id);
  void make_room(model::RequestId id);
  void draw(model::RequestId id, Request& request, std::span<const float> logits);
  void store_last_block(Request& request);
  void keep_snapshot(const Request& request);
  void end_if_idle(model::RequestId id);
  /// `report_` with this rank's load as it is now.
  void send_report();

  DecodeRankConfig config_;
  LlamaShape shape_;
  const KvArena& arena_;
  BlockMover& mover_;
  Outbox& outbox_;
  RankState* state_;  // null: the model has no window
  kv::Admission admission_;
  kv::BlockTables& tables_;
  std::map<model::RequestId, Request> requests_;
  std::size_t moves_ = 0;  // jobs of the mover under way, those of requests that left too
  std::vector<model::RequestId> batch_;
  std::vector<Segment> segments_;
  wire::DecodeStep report_;
  std::uint64_t steps_ = 0, stays_ = 0;
  std::uint32_t stored_ = 0;  // since the last report
};

}  // namespace trimtab::engine
