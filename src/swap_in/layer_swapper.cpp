#include "swap_in/layer_swapper.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "ipc/steady_clock.h"

namespace trimtab::swap_in {
namespace {

/// Layers that were started and have not landed yet, in order.
struct UnderWay {
  std::uint32_t layers = 0;  // once this marker is reached, so many are there
  Marker marker = 0;
};

}  // namespace

LayerSwapper::LayerSwapper(std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)), thread_([this] { run(); }) {}

LayerSwapper::~LayerSwapper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const Job& job : jobs_)
    fail(job, {base::Code::kCancelled, "the engine stops; nothing more is swapped in", "swap_in"});
}

std::shared_ptr<LayerGate> LayerSwapper::swap(SwapRequest request) {
  TRIMTAB_CHECK(request.feed != nullptr || request.sources.size() == request.destinations.size(),
                "every block has two places");
  auto gate = std::make_shared<LayerGate>(static_cast<std::uint32_t>(request.layers.size()));
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(request), gate});
  }
  changed_.notify_all();
  return gate;
}

SwapStats LayerSwapper::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

bool LayerSwapper::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void LayerSwapper::run() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      ++stats_.swaps;
    }
    base::Status done = carry_out(job);
    if (done) {
      if (job.request.feed) job.request.feed->ended({});
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      ++stats_.failed;
    }
    // Copies that were started may still land: only after that may the places be used for something else.
    if (const auto last = backend_->mark()) {
      if (const auto landed = backend_->wait(*last); !landed) done = landed;
    }
    fail(job, done.error());
  }
}

void LayerSwapper::fail(const Job& job, const base::Error& error) {
  job.gate->fail(error);
  if (job.request.feed) job.request.feed->ended(tl::unexpected<base::Error>(error));
}

base::Status LayerSwapper::open(const Job& job, std::uint32_t layers) {
  if (job.request.feed) TRIMTAB_TRY(job.request.feed->landed(layers - 1));
  job.gate->open(layers);
  if (job.request.feed) job.request.feed->opened(layers);
  return {};
}

base::Status LayerSwapper::carry_out(const Job& job) {
  std::deque<UnderWay> under_way;
  const auto layers = static_cast<std::uint32_t>(job.request.layers.size());
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    TRIMTAB_TRY(copy_layer(job, layer));
    const auto marker = backend_->mark();
    if (!marker) return tl::unexpected<base::Error>(marker.error());
    under_way.push_back({layer + 1, *marker});
    while (!under_way.empty()) {
      const auto landed = backend_->reached(under_way.front().marker);
      if (!landed) return tl::unexpected<base::Error>(landed.error());
      if (!*landed) break;
      TRIMTAB_TRY(open(job, under_way.front().layers));
      under_way.pop_front();
    }
  }
  for (const UnderWay& rest : under_way) {
    TRIMTAB_TRY(backend_->wait(rest.marker));
    TRIMTAB_TRY(open(job, rest.layers));
  }
  const std::lock_guard lock(mutex_);
  stats_.layers += layers;
  return {};
}

base::Status LayerSwapper::copy_layer(const Job& job, std::uint32_t layer) {
  const SwapRequest& request = job.request;
  const LayerSpan span = request.layers[layer];
  const std::size_t batch = std::clamp<std::size_t>(request.batch, 1, backend_->batch_max());
  const std::size_t wanted = request.destinations.size();
  std::vector<LayerFeed::Arrival> blocks;
  std::vector<Copy> copies;
  const ipc::SteadyClock clock;
  base::Nanos last_progress = clock.now();
  for (std::size_t taken = 0; taken < wanted;) {
    blocks.clear();
    if (request.feed) {
      TRIMTAB_TRY(request.feed->take(layer, blocks, base::Nanos{50'000'000}));
    } else {
      for (std::uint32_t block = 0; block < wanted; ++block)
        blocks.push_back({block, request.sources[block]});
    }
    if (stopping()) return base::fail(base::Code::kCancelled, "the engine stops", "swap_in");
    if (blocks.empty() && clock.now() - last_progress > request.patience)
      return base::fail(base::Code::kDeadlineExceeded,
                        fmt::format("layer {}: {} of {} blocks came, and none for {:.1f} s", layer, taken,
                                    wanted, base::to_seconds(request.patience)),
                        "swap_in");
    if (!blocks.empty()) last_progress = clock.now();
    for (const LayerFeed::Arrival& one : blocks) {
      TRIMTAB_CHECK(one.block < wanted, "a block of the request");
      copies.push_back({one.source + span.offset, request.destinations[one.block] + span.offset, span.bytes});
      if (copies.size() < batch) continue;
      TRIMTAB_TRY(start(copies));
      copies.clear();
    }
    taken += blocks.size();
    // What has come is copied at once, in a smaller call, while the rest is still on its way.
    if (!copies.empty()) TRIMTAB_TRY(start(copies));
    copies.clear();
  }
  return {};
}

base::Status LayerSwapper::start(std::span<const Copy> copies) {
  const ipc::SteadyClock clock;
  const base::Nanos before = clock.now();
  TRIMTAB_TRY(backend_->start(copies));
  const base::Nanos spent = clock.now() - before;
  const std::lock_guard lock(mutex_);
  stats_.busy_ns += static_cast<std::uint64_t>(spent.value);
  stats_.copies += copies.size();
  for (const Copy& copy : copies) stats_.bytes += copy.bytes;
  return {};
}

}  // namespace trimtab::swap_in
