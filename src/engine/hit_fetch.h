#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/running_checksum.h"
#include "engine/hit_swap.h"
#include "engine/kv_arena.h"
#include "engine/move_job.h"
#include "ipc/steady_clock.h"
#include "kv_pool/pool_client.h"
#include "swap_in/layer_swapper.h"

namespace trimtab::engine {

/// One hit on its way from the loader's arena into this rank's. First layer by layer, as the swap thread asks
/// (a LayerFeed); when that fails, what is left block by block (`copy_blocks`), which ends before the first
/// block that is gone. Every block is compared with its checksum in its new place, either way.
class HitFetch final : public swap_in::LayerFeed, public std::enable_shared_from_this<HitFetch> {
 public:
  struct Hooks {
    std::function<void()> more;  // so many more layers are there that it may be worth beginning
    std::function<void(std::shared_ptr<HitFetch>, const base::Status&)> over;  // the swap is
  };
  /// `patience`: what the loader was told to give up after. One that says nothing of the plan by then, though
  /// it lives, has lost it: the rest is computed all the same.
  HitFetch(const KvArena& arena, kv_pool::PoolClient& client, kv_pool::FetchTicket ticket, MoveJob job,
           base::Nanos patience, Hooks hooks)
      : arena_(arena),
        client_(client),
        ticket_(std::move(ticket)),
        job_(std::move(job)),
        hooks_(std::move(hooks)),
        patience_(patience),
        begun_(clock_.now()),
        heard_(begun_) {}

  /// To be swapped in by layers; `layout` outlives this.
  swap_in::SwapRequest by_layer(const HitLayout& layout, std::uint32_t batch);
  /// What can be had of the hit, block by block. Blocks that were verified already stay.
  void copy_blocks(MoveDone& done);
  /// Either way ends soon. Any thread.
  void cancel() { cancelled_.store(true); }
  bool cancelled() const { return cancelled_.load(); }
  /// It ended because there was no loader any more; another may have come.
  bool loader_lost() const { return loader_lost_; }
  const MoveJob& job() const { return job_; }

  base::Status take(std::uint32_t layer, std::vector<Arrival>& arrivals, base::Nanos wait) override;
  base::Status landed(std::uint32_t layer) override;
  void opened(std::uint32_t count) override;
  void ended(const base::Status& how) override { hooks_.over(shared_from_this(), how); }

 private:
  /// The store may be slow; a loader that does not answer a question either is given up, and so is a plan of
  /// which nothing is said at its end.
  base::Status still_there(bool news);

  const KvArena& arena_;
  kv_pool::PoolClient& client_;
  kv_pool::FetchTicket ticket_;
  MoveJob job_;
  Hooks hooks_;
  ipc::SteadyClock clock_;
  base::Nanos patience_, begun_, heard_;
  const HitLayout* layout_ = nullptr;
  std::vector<kv_pool::FetchTicket::Arrival> came_;
  std::vector<base::RunningChecksum> checksums_;  // of what has landed, by block
  std::uint32_t verified_ = 0;                    // leading blocks
  bool loader_lost_ = false;
  std::atomic<bool> cancelled_{false};
};

}  // namespace trimtab::engine
