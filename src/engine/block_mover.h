#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/hit_fetch.h"
#include "engine/hit_swap.h"
#include "engine/kv_arena.h"
#include "engine/move_job.h"
#include "engine/transport.h"
#include "kv_pool/pool_client.h"

namespace trimtab::engine {

/// A hit has been asked for and comes layer by layer. A fetch that is tried again comes with another.
struct HitComing {
  model::RequestId id;
  std::uint64_t stay = 0;
  std::shared_ptr<HitSwap> swap;
};

struct BlockMoverOptions {
  std::string pool_socket;          // empty: there is no pool
  std::optional<HitLayout> layout;  // absent: hits come in whole blocks
  // What has not come by then is computed; so long a loader may take to answer a question.
  base::Nanos fetch_patience{10'000'000'000}, answer_patience{2'000'000'000};
};

/// Moves blocks in the background, so that no step waits for the pool or for a copy: hand-overs first (a
/// client waits), then fetches, then stores. A fetch asks for all its blocks at once; they are swapped in
/// layer by layer in a thread of its own (system facts, section 12), or, when they come in whole blocks or a
/// layer fails, copied as they come: those before the first that does not come count. A pool that is away is
/// dialled again; a fetch waits for that as long as its job's patience, stores are dropped. Every failure
/// means "compute it".
class BlockMover {
 public:
  struct Hooks {
    std::function<void(MoveDone)> done;
    /// A hand-over is done; before `done`.
    std::function<void(const wire::PrefillDone&)> handed = [](const wire::PrefillDone&) {};
    std::function<void(HitComing)> coming = [](const HitComing&) {};
    std::function<void()> more = [] {};  // of some hit that comes, more layers are there
  };
  /// The hooks are called on the mover's threads.
  BlockMover(const KvArena& arena, Transport& transport, BlockMoverOptions options, Hooks hooks);
  ~BlockMover();

  void submit(MoveJob job);
  /// Ends all jobs of the request soon: each still comes back as done.
  void cancel(model::RequestId id);
  swap_in::SwapStats swaps() const { return swapper_ ? swapper_->stats() : swap_in::SwapStats{}; }

 private:
  struct Fetch {
    MoveJob job;
    base::Nanos not_before, give_up;  // of the next try; after that no other
  };
  using Task = std::function<void()>;

  void run();
  /// The next thing to do, in order of urgency; nothing while there is none.
  Task next();
  MoveDone perform(MoveJob job);
  void begin(Fetch fetch);
  void begin_by_layer(const std::shared_ptr<HitFetch>& fetch, base::Nanos asked);
  void finish_by_block(const std::shared_ptr<HitFetch>& fetch);
  void on_swap_over(const std::shared_ptr<HitFetch>& fetch, const base::Status& how);
  /// Ends a fetch, or tries it again soon when it got nothing because the loader is `away`.
  void settle(MoveDone done, bool away, base::Nanos give_up);
  bool cancelled();
  void report(MoveDone& done);
  base::Status move_one(const MoveJob& job, std::size_t i);
  kv_pool::PoolClient* pool();

  const KvArena& arena_;
  Transport& transport_;
  BlockMoverOptions options_;
  Hooks hooks_;
  policy::SwapBackendCost cost_;
  std::optional<kv_pool::PoolClient> pool_;
  base::Nanos next_dial_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MoveJob> hand_overs_, stores_;
  std::deque<Fetch> fetches_;
  std::deque<std::shared_ptr<HitFetch>> broken_;  // whose swap failed
  struct Active {
    std::shared_ptr<HitFetch> fetch;
    base::Nanos give_up;
  };
  std::vector<Active> active_;  // asked of the loader
  std::optional<model::RequestId> current_;
  bool cancel_current_ = false;
  bool stopping_ = false;
  std::unique_ptr<swap_in::LayerSwapper> swapper_;
  std::thread thread_;
};

}  // namespace trimtab::engine
