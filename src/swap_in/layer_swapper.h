#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "swap_in/backend.h"
#include "swap_in/layer_gate.h"

namespace trimtab::swap_in {

/// Where one layer lies within a block; the same on both sides.
struct LayerSpan {
  std::size_t offset = 0, bytes = 0;
};

/// Tells which blocks have come so far that a layer of them can be copied, and where they lie. The loader's
/// fetch tickets are made for it (kv_pool); tests implement it with what they like.
class LayerFeed {
 public:
  struct Arrival {
    std::uint32_t block = 0;
    const std::byte* source = nullptr;  // the block's begin in host memory; stays until the feed goes
  };
  virtual ~LayerFeed() = default;
  /// Appends blocks whose `layer` lies in host memory and which were not given for this layer before; waits
  /// up to `wait` for the first. An error ends the swap: what the loader said.
  virtual base::Status take(std::uint32_t layer, std::vector<Arrival>& arrivals, base::Nanos wait) = 0;

  /// All blocks of `layer` have landed; its gate opens when this returns. An error ends the swap: what
  /// landed is not what it should be.
  virtual base::Status landed([[maybe_unused]] std::uint32_t layer) { return {}; }
  /// Layers [0, count) are open.
  virtual void opened([[maybe_unused]] std::uint32_t count) {}
  /// The swap is over, its gate knows, and no copy is under way any more; the last word of a feed.
  virtual void ended([[maybe_unused]] const base::Status& how) {}
};

/// One hit to be swapped in: blocks scattered in host memory, places scattered in device memory.
struct SwapRequest {
  std::vector<LayerSpan> layers;                       // in the order of computing
  std::vector<const std::byte*> sources;               // of each block; with a feed none: it tells them
  std::vector<std::byte*> destinations;                // of each block
  std::shared_ptr<LayerFeed> feed;                     // absent: everything is there already
  std::uint32_t batch = 64;                            // copies per call, cut to the backend's batch_max
  base::Nanos patience = base::Nanos{10'000'000'000};  // without any progress of the feed
};

struct SwapStats {
  std::uint64_t swaps = 0, failed = 0, layers = 0, copies = 0, bytes = 0;
  std::uint64_t busy_ns = 0;  // in the backend's calls
};

/// The engine's thread that moves hits into device memory, layer after layer, ahead of the forward pass
/// (system facts, section 12). A request's gate opens layer by layer; the next layer's copies start before
/// the last one's have landed. Requests are served in the order they came.
class LayerSwapper {
 public:
  explicit LayerSwapper(std::unique_ptr<Backend> backend);
  ~LayerSwapper();
  LayerSwapper(const LayerSwapper&) = delete;
  LayerSwapper& operator=(const LayerSwapper&) = delete;

  /// Sources and destinations must stay until the gate has opened for the last layer, or has failed: a copy
  /// that is under way still lands, so a request that fails waits for its copies before its gate says so.
  std::shared_ptr<LayerGate> swap(SwapRequest request);
  SwapStats stats() const;

 private:
  struct Job {
    SwapRequest request;
    std::shared_ptr<LayerGate> gate;
  };
  void run();
  base::Status carry_out(const Job& job);
  /// Starts all copies of one layer as its blocks come.
  base::Status copy_layer(const Job& job, std::uint32_t layer);
  base::Status start(std::span<const Copy> copies);
  static base::Status open(const Job& job, std::uint32_t layers);
  static void fail(const Job& job, const base::Error& error);
  bool stopping() const;

  std::unique_ptr<Backend> backend_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  SwapStats stats_;
  std::thread thread_;
};

}  // namespace trimtab::swap_in
