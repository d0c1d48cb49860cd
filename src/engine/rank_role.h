#pragma once

#include <span>

#include "base/units.h"
#include "engine/block_mover.h"
#include "engine/forward.h"
#include "engine/rank_state.h"
#include "ipc/channel.h"
#include "wire/messages.h"

namespace trimtab::engine {

/// Where a rank's messages to the control process go. Any thread.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void send_frame(const ipc::Frame& frame) = 0;
  template <class M>
  void send(const M& message) {
    send_frame(wire::to_frame(message));
  }
};

/// What a rank does between and with the group's steps; prefill and decode differ in nothing else. One
/// thread:
///
///   events -> propose() -> all-reduce over the group -> plan(budget) -> the group's step -> finish_step()
class RankRole {
 public:
  virtual ~RankRole() = default;
  /// A message of the control process. One that cannot be read is the control's fault and ends the rank.
  virtual base::Status on_frame(const ipc::Frame& frame) = 0;
  virtual void on_moved(MoveDone done) = 0;
  /// A hit that was asked for comes layer by layer.
  virtual void on_coming(HitComing) {}
  /// Of models with sliding-window layers.
  virtual void on_state(StateDone done) = 0;

  struct Proposal {
    bool has_work = false;
    base::Nanos vote = base::kForever;  // of prefill ranks: what the group agrees on is the step's budget
  };
  virtual Proposal propose() = 0;
  /// What this rank computes in the step; valid until `finish_step`. Empty: an empty batch.
  virtual std::span<const Segment> plan(base::Nanos budget) = 0;
  /// Nothing of any request is held and no block is being moved.
  virtual bool idle() const = 0;
  virtual std::uint32_t blocks_free() const = 0;
  /// The step is done; logits are in `forward`. Not called for empty batches.
  virtual void finish_step(const Forward& forward) = 0;
};

}  // namespace trimtab::engine
