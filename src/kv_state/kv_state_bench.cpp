#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kv_state/snapshot_client.h"
#include "kv_state/snapshot_server.h"

namespace {

using namespace trimtab;
using namespace trimtab::kv_state;

constexpr std::size_t kBytes = 1'351'680;  // V4.1: 20 layers x 128 rows x 528 bytes

SnapshotName name(std::uint64_t n) { return {{n, n}, 128, {7, 7}}; }

std::vector<std::byte> content(std::uint64_t n) {
  std::vector<std::byte> out(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) out[i] = static_cast<std::byte>(i * 31 + n);
  return out;
}

/// The peer: the bytes, copied once, into one of `places` places in turn (32: out of the caches, as in
/// `store_put`).
void copy_alone(benchmark::State& state) {
  const auto places = static_cast<std::size_t>(state.range(0));
  const auto from = content(1);
  std::vector<std::byte> to(places * kBytes);
  std::size_t place = 0;
  for (auto _ : state) {
    std::memcpy(to.data() + (place++ % places) * kBytes, from.data(), kBytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}
BENCHMARK(copy_alone)->ArgName("places")->Arg(1)->Arg(32)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// Kept and, since there is room for 32, another one evicted.
void store_put(benchmark::State& state) {
  SnapshotStore store(base::Bytes{32 * static_cast<std::int64_t>(kBytes)}, HostId{1}, 1);
  const auto bytes = content(1);
  std::uint64_t n = 0;
  for (auto _ : state) {
    if (!store.put(name(++n), bytes)) state.SkipWithError("refused");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}
BENCHMARK(store_put)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// Found and verified on the own machine.
void store_find(benchmark::State& state) {
  SnapshotStore store(base::Bytes{32 * static_cast<std::int64_t>(kBytes)}, HostId{1}, 1);
  if (!store.put(name(1), content(1))) state.SkipWithError("refused");
  for (auto _ : state) benchmark::DoNotOptimize(store.find(name(1)));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}
BENCHMARK(store_find)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// From another machine, here over loopback: question, transfer, verified on both sides.
void fetch(benchmark::State& state) {
  SnapshotStore store(base::Bytes{32 * static_cast<std::int64_t>(kBytes)}, HostId{1}, 1);
  const auto server = SnapshotServer::start(store, {{"127.0.0.1", 0}});
  if (!server || !store.put(name(1), content(1))) state.SkipWithError("not started");
  SnapshotClient client;
  const Endpoint endpoint{"127.0.0.1", (*server)->port()};
  std::vector<std::byte> into(kBytes);
  for (auto _ : state) {
    if (!client.fetch(endpoint, 1, name(1), into, base::Nanos{10'000'000'000})) state.SkipWithError("missed");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kBytes));
}
BENCHMARK(fetch)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
