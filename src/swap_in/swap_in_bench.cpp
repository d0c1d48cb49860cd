#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>

#include "base/prng.h"
#include "ipc/steady_clock.h"
#include "swap_in/layer_swapper.h"
#include "swap_in/memcpy_backend.h"

namespace trimtab::swap_in {
namespace {

/// The published shape: 512 random blocks of a 64K-token hit, V4.1's four owner layers (22,784 bytes, the
/// last one twice that), source and destination random (system facts, section 12).
struct Hit {
  static constexpr std::size_t kBlocks = 512, kBlock = 114'048, kSlots = 1'024;
  Hit() : source(kSlots * kBlock, std::byte{1}), destination(kSlots * kBlock, std::byte{2}) {
    base::Prng prng(1, 2);
    std::vector<std::size_t> from(kSlots), to(kSlots);
    std::iota(from.begin(), from.end(), 0U);
    std::iota(to.begin(), to.end(), 0U);
    for (std::size_t i = kSlots - 1; i > 0; --i) {
      std::swap(from[i], from[prng.next() % (i + 1)]);
      std::swap(to[i], to[prng.next() % (i + 1)]);
    }
    for (std::size_t i = 0; i < kBlocks; ++i) {
      request.sources.push_back(source.data() + from[i] * kBlock);
      request.destinations.push_back(destination.data() + to[i] * kBlock);
    }
    request.layers = {{0, 22'784}, {22'784, 22'784}, {45'568, 22'784}, {68'352, 45'568}};
  }
  double memcpy_ns() {
    const ipc::SteadyClock clock;
    const base::Nanos start = clock.now();
    for (std::size_t i = 0; i < kBlocks; ++i)
      std::memcpy(request.destinations[i], request.sources[i], 113'920);
    return static_cast<double>((clock.now() - start).value);
  }
  std::vector<std::byte> source, destination;
  SwapRequest request;
};

/// A whole hit, from asking to the last layer, beside a memcpy of the same blocks: the limit of this machine.
void swap_hit(benchmark::State& state) {
  Hit hit;
  LayerSwapper swapper(std::make_unique<MemcpyBackend>());
  const ipc::SteadyClock clock;
  double copied = 0, swapped = 0;
  for (auto _ : state) {
    copied += hit.memcpy_ns();
    const base::Nanos start = clock.now();
    const auto gate = swapper.swap(hit.request);
    if (!gate->wait(3)) return state.SkipWithError("not swapped in");
    swapped += static_cast<double>((clock.now() - start).value);
  }
  state.counters["of_memcpy"] = swapped / copied;
  state.counters["GB_per_s"] = static_cast<double>(state.iterations()) * Hit::kBlocks * 113'920 / swapped;
}
BENCHMARK(swap_hit)->Unit(benchmark::kMillisecond)->UseRealTime();

/// A forward pass that takes twice as long as the copies, on a thread of its own: how much of it is waiting.
/// Only the first layer cannot be hidden: a fifth of the bytes.
void overlap(benchmark::State& state) {
  Hit hit;
  LayerSwapper swapper(std::make_unique<MemcpyBackend>());
  const ipc::SteadyClock clock;
  double stalled = 0, later = 0, total = 0, alone = 0;
  for (auto _ : state) {
    const double copy_ns = hit.memcpy_ns();
    const base::Nanos start = clock.now();
    const auto gate = swapper.swap(hit.request);
    for (std::uint32_t layer = 0; layer < 4; ++layer) {
      const base::Nanos before = gate->stalled();
      if (!gate->wait(layer)) return state.SkipWithError("not swapped in");
      if (layer > 0) later += static_cast<double>((gate->stalled() - before).value);
      const base::Nanos end = clock.now() + base::Nanos{static_cast<std::int64_t>(copy_ns / 2)};
      while (clock.now() < end) benchmark::ClobberMemory();
    }
    stalled += static_cast<double>(gate->stalled().value);
    total += static_cast<double>((clock.now() - start).value);
    alone += copy_ns;
  }
  state.counters["stalled_of_pass"] = stalled / total;
  state.counters["stalled_after_first_layer"] = later / total;
  state.counters["stalled_of_copies"] = stalled / alone;
}
BENCHMARK(overlap)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace trimtab::swap_in
