#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/kv_arena.h"
#include "engine/rank_role.h"
#include "kv/state_slots.h"
#include "model/cluster_config.h"
#include "policy/prefill/rank_scheduler.h"

namespace trimtab::engine {

struct PrefillRankConfig {
  policy::RankConfig scheduler;
  std::int64_t context_tokens = 0;  // a prompt must leave room for one token more
  bool logits_checksums = true;
};

/// The prefill side of a rank. A request waits for blocks (first come, first served; all of its blocks or
/// none), takes its hit from the pool, is computed chunk by chunk, gives each full block to the pool as it is
/// finished, and hands its KV over to the decode rank once both the prompt and the place are there. Only the
/// chunks run in the group's step; all else goes beside it.
///
/// A hit that comes layer by layer is computed from while it comes, once a step that starts now is predicted
/// to wait next to nothing (policy/swap_in): a step that waits holds up its whole group. What was predicted
/// wrongly ends soon: a step waits as long as it computes, then the chunk is thrown away, as it is when a
/// layer fails, and the request waits for the end of its hit. In models with a window the state then is
/// restored anew.
class PrefillRank final : public RankRole {
 public:
  PrefillRank(const PrefillRankConfig& config, policy::CostModel cost, const LlamaShape& shape,
              const KvArena& arena, BlockMover& mover, Outbox& outbox, RankState* state = nullptr);

  base::Status on_frame(const ipc::Frame& frame) override;
  void on_moved(MoveDone done) override;
  void on_coming(HitComing coming) override;
  void on_state(StateDone done) override;
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
  enum class Stage : std::uint8_t {
    kQueued,
    kFetching,
    kRestoring,
    kComputing,
    kComputed,
    kHandingOver,
    kStoring
  };
  struct Image {
    model::ImageSpan span;
    std::vector<float> rows;  // [tokens][hidden]; empty until the encoder's answer came
  };
  struct Request {
    /// Computed a second time, to see how far the first time's logits were off: it leaves nothing behind.
    bool is_truth() const { return start.window.audit == wire::DriftAudit::kTruth; }
    wire::PrefillStart start;
    std::uint64_t stay =
        0;  // tells it from an earlier stay of the same id, whose stores may still be under way
    Stage stage = Stage::kQueued;
    std::vector<Image> images;              // by position
    std::vector<EmbeddingRows> embeddings;  // views of the images' rows
    std::optional<wire::DecodeTarget> target;
    std::shared_ptr<std::atomic<bool>> said;  // of the hand-over: `done` has been sent
    wire::PrefillDone done;
    std::shared_ptr<HitSwap> swap;         // of a hit that comes layer by layer
    bool early = false;                    // computed from before all of it is there
    base::Nanos stalled_before;            // of `swap`, counted already
    bool thrown = false;                   // a chunk was; the next waits for the hit's end
    std::optional<std::uint32_t> shorter;  // blocks the hit turned out to have, while a state came
    std::int64_t computed = 0;             // tokens whose KV is in the blocks
    std::uint32_t jobs = 0;                // of the mover, under way
    std::int64_t kv_present = 0;  // tokens whose block KV came from the pool: not written again, not stored
    std::vector<SnapshotCopy> copies;            // of the step that is being planned
    std::vector<std::vector<std::byte>> copied;  // what they point to
    bool drifts = false;  // the hit began without the state that it needs (approximate)
    bool ending = false;  // aborted or failed: freed when the last job is back
    std::optional<wire::RequestFailed> failure;  // said then; otherwise Released
  };

  void on_start(wire::PrefillStart message);
  void on_embeddings(const wire::Embeddings& message);
  void on_target(wire::DecodeTarget message);
  void on_abort(model::RequestId id);
  std::optional<std::string> fault_of(const wire::PrefillStart& message) const;
  void admit();
  std::uint32_t blocks_to_fetch(const Request& request) const;
  MoveJob fetch_of(const Request& request, std::uint32_t hit_blocks) const;
  /// Requests whose hit has come so far that a step may start.
  void begin_early();
  /// So many blocks are here, or are about to be.
  void begin_from(Request& request, std::uint32_t blocks);
  void count_stall(Request& request) const;
  void throw_away(Request& request, const policy::PlannedChunk& chunk);
  void on_fetched(model::RequestId id, Request& request, const MoveDone& done);
  /// What the first step over a hit of so many blocks is predicted to compute.
  base::Nanos first_step(const Request& request, std::uint32_t hit_blocks) const;
  /// `hit_blocks`: where the computation starts; `present_blocks` of block KV are here.
  void begin_compute(Request& request, std::uint32_t hit_blocks, std::uint32_t present_blocks);
  // prefill_window.cpp: the state of sliding-window layers.
  /// Decides with the `blocks` that come where the computation starts, and takes the state there first. Again
  /// when the hit turns out shorter, and after a chunk that was thrown away: it has moved the ring on.
  void begin_window(Request& request, std::uint32_t blocks);
  void plan_window(Request& request, Segment& segment);
  void keep_snapshots(Request& request);
  void hand_over_state(Request& request);
  void submit_state(Request& request, StateJob job);
  base::TokenCount ready_until(const Request& request) const;
  void store_new_blocks(Request& request, std::int64_t before);
  void complete(Request& request, std::span<const float> logits);
  /// The end of an answer of one token: whoever continues the conversation finds its blocks in the pool.
  void store_then_finish(Request& request);
  void hand_over(Request& request);
  void finish(model::RequestId id);
  void leave(model::RequestId id);
  void fail(model::RequestId id, base::Code code, std::string message);
  void end(model::RequestId id);
  void submit(MoveJob job);
  void report_step(const Forward& forward);

  PrefillRankConfig config_;
  LlamaShape shape_;
  const KvArena& arena_;
  BlockMover& mover_;
  Outbox& outbox_;
  policy::RankScheduler scheduler_;
  RankState* state_;  // null: the model has no window
  kv::Admission admission_;
  kv::BlockTables& tables_;
  std::map<model::RequestId, Request> requests_;
  std::size_t moves_ = 0;               // jobs of the mover under way, those of requests that left too
  std::deque<model::RequestId> queue_;  // waiting for blocks
  policy::Vote vote_;
  policy::StepPlan plan_;
  std::vector<Segment> segments_;
  base::Nanos may_stall_;   // what is left of it in this step
  base::Nanos step_began_;  // of a step that may stall
  std::uint64_t steps_ = 0, stays_ = 0;
  base::Nanos actual_;  // of the last step, in the quota's scope
};

}  // namespace trimtab::engine
