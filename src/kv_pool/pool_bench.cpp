#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "ipc/steady_clock.h"
#include "kv_code/coder.h"
#include "kv_pool/content_checksum.h"
#include "kv_pool/loader_process.h"
#include "kv_pool/pool_client.h"
#include "kv_pool/test_support.h"

namespace {

using namespace trimtab;
using kv_pool::test::key;

/// A loader in its own process, memory only (the disk is not what is measured here).
struct Pool {
  explicit Pool(std::uint64_t block_bytes, std::uint64_t slots)
      : loader(options(block_bytes, slots)),
        client(*kv_pool::PoolClient::connect(directory.path("kv.sock"), base::Nanos{10'000'000'000})) {}
  kv_pool::LoaderOptions options(std::uint64_t block_bytes, std::uint64_t slots) const {
    kv_pool::LoaderOptions options;
    options.socket_path = directory.path("kv.sock");
    options.memory_bytes = slots * (block_bytes + 4096);
    options.kv.block_bytes = base::Bytes{static_cast<std::int64_t>(block_bytes)};
    return options;
  }
  kv_pool::test::TempDirectory directory;
  kv_pool::test::LoaderProcess loader;
  kv_pool::PoolClient client;
};

/// As engines do, every block names the one before it: blocks of nobody's prompt are each judged by
/// themselves when the pool decides what leaves.
std::optional<model::BlockKey> before(std::uint64_t n) {
  return n > 0 ? std::optional(key(n - 1)) : std::nullopt;
}

// Bytes of a block: one of DeepSeek-V4.1-Flash, one of SmolLM2-135M in f32.
constexpr std::int64_t kV41 = 114'048, kSmolLm2 = 30LL * 2 * 3 * 64 * 128 * 4;

void match(benchmark::State& state) {
  Pool pool(4'096, 256);
  std::vector<model::BlockKey> keys;
  const std::vector<std::byte> block(4'096);
  for (std::uint64_t n = 0; n < static_cast<std::uint64_t>(state.range(0)); ++n) {
    keys.push_back(key(n));
    if (!pool.client.put(key(n), block, before(n))) state.SkipWithError("put failed");
  }
  for (auto _ : state) {
    const auto found = pool.client.match(keys);
    if (!found || found->blocks != keys.size()) state.SkipWithError("match failed");
  }
}
BENCHMARK(match)->ArgName("keys")->Arg(64)->UseRealTime()->Unit(benchmark::kMicrosecond);

void get(benchmark::State& state) {
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  Pool pool(bytes, 16);
  std::vector<std::byte> block(bytes);
  for (std::uint64_t n = 0; n < 16; ++n)
    if (!pool.client.put(key(n), block, before(n))) state.SkipWithError("put failed");
  std::uint64_t n = 0;
  for (auto _ : state)
    if (!pool.client.get(key(n++ % 16), block)) state.SkipWithError("get failed");
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(get)->ArgName("bytes")->Arg(kV41)->Arg(kSmolLm2)->UseRealTime()->Unit(benchmark::kMicrosecond);

void put(benchmark::State& state) {
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  Pool pool(bytes, 16);
  const std::vector<std::byte> block(bytes);
  std::uint64_t n = 0;
  for (auto _ : state) {
    if (!pool.client.put(key(n), block, before(n))) state.SkipWithError("put failed");
    ++n;
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(put)->ArgName("bytes")->Arg(kV41)->Arg(kSmolLm2)->UseRealTime()->Unit(benchmark::kMicrosecond);

/// The peers: the copy alone, and the copy with its checksum, over as many blocks.
void memcpy_blocks(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> blocks(bytes * 16, std::byte{1}), block(bytes);
  std::size_t n = 0;
  for (auto _ : state) {
    std::memcpy(block.data(), blocks.data() + (n++ % 16) * bytes, bytes);
    benchmark::DoNotOptimize(block.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(memcpy_blocks)->ArgName("bytes")->Arg(kV41)->Arg(kSmolLm2)->Unit(benchmark::kMicrosecond);

void memcpy_and_checksum(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::byte> blocks(bytes * 16, std::byte{1}), block(bytes);
  std::size_t n = 0;
  for (auto _ : state) {
    std::memcpy(block.data(), blocks.data() + (n++ % 16) * bytes, bytes);
    benchmark::DoNotOptimize(kv_pool::content_checksum(key(0), block));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(memcpy_and_checksum)->ArgName("bytes")->Arg(kV41)->Arg(kSmolLm2)->Unit(benchmark::kMicrosecond);

constexpr std::uint32_t kHitBlocks = 512, kHits = 4;

/// A hit of 64K tokens in the layers of V4.1, blocks in the store (a directory in memory) and not in the
/// arena.
struct Hit {
  Hit() : loader(options()) {
    auto pool = client();
    block.resize(kV41, std::byte{7});
    for (std::uint64_t n = 0; n < kHits * kHitBlocks; ++n) {
      keys[n / kHitBlocks].push_back(key(n));
      while (!pool.put(key(n), block, before(n))) ok &= pool.flush().has_value();
    }
    ok &= pool.flush().has_value();
    source.assign(kHitBlocks * kV41, std::byte{3});
    device.resize(kHitBlocks * kV41);
  }
  kv_pool::LoaderOptions options() const {
    kv_pool::LoaderOptions options;
    options.socket_path = directory.path("kv.sock");
    options.targets = {directory.path("pool")};
    options.memory_bytes = 2UL * kHitBlocks * 114'688;  // slots of whole pages
    options.file_bytes = 2'300UL * kv_code::kShards * 12'288;
    options.kv.block_bytes = base::Bytes{kV41};
    for (const std::int64_t bytes : {22'784, 22'784, 22'784, 45'568})
      options.kv.layer_bytes.push_back(base::Bytes{bytes});
    return options;
  }
  kv_pool::PoolClient client() const {
    return *kv_pool::PoolClient::connect(directory.path("kv.sock"), base::Nanos{10'000'000'000});
  }
  double memcpy_ns() {
    const base::Nanos start = clock.now();
    for (std::size_t i = 0; i < kHitBlocks; ++i)
      std::memcpy(device.data() + i * kV41, source.data() + (i * 7 % kHitBlocks) * kV41, kV41);
    return static_cast<double>((clock.now() - start).value);
  }
  /// Processor time of the loader so far, the kernel's threads for its input and output included.
  double loader_cpu_ms() const {
    clockid_t id{};
    timespec at{};
    if (clock_getcpuclockid(loader.pid(), &id) != 0 || clock_gettime(id, &at) != 0) return 0;
    return static_cast<double>(at.tv_sec) * 1e3 + static_cast<double>(at.tv_nsec) / 1e6;
  }
  /// Until `layer` of all blocks is there.
  bool take(kv_pool::FetchTicket& ticket, std::uint32_t layer) {
    std::vector<kv_pool::FetchTicket::Arrival> arrivals;
    while (arrivals.size() < kHitBlocks) {
      const std::size_t had = arrivals.size();
      std::vector<kv_pool::FetchTicket::Arrival> more;
      if (!ticket.take(layer, more, base::Nanos{10'000'000'000})) return false;
      arrivals.insert(arrivals.end(), more.begin(), more.end());
      if (arrivals.size() == had) return false;
    }
    return true;
  }
  kv_pool::test::TempDirectory directory;
  kv_pool::test::LoaderProcess loader;
  ipc::SteadyClock clock;
  std::array<std::vector<model::BlockKey>, kHits> keys;
  std::vector<std::byte> block, source, device;
  bool ok = true;
};

/// Blocks that lie in the arena: asked for by one plan, copied and verified as they come, beside a memcpy.
void fetch_from_arena(benchmark::State& state) {
  Hit hit;
  auto pool = hit.client();
  {
    auto warm = pool.fetch(hit.keys[0]);  // into the arena
    for (std::uint32_t layer = 0; layer < 4; ++layer)
      if (!hit.ok || !warm || !hit.take(*warm, layer)) return state.SkipWithError("not fetched");
  }
  double copied = 0, fetched = 0;
  for (auto _ : state) {
    copied += hit.memcpy_ns();
    const base::Nanos start = hit.clock.now();
    auto ticket = pool.fetch(hit.keys[0]);
    std::vector<kv_pool::FetchTicket::Finished> blocks;
    for (std::uint32_t over = 0; hit.ok && over < kHitBlocks;) {
      blocks.clear();
      if (!ticket || !ticket->finished(blocks, base::Nanos{10'000'000'000}) || blocks.empty())
        return state.SkipWithError("not fetched");
      for (const auto& one : blocks) {
        ++over;
        const auto to = std::span(hit.device).subspan(one.block * std::size_t{kV41}, kV41);
        if (!one.status || !ticket->copy(one.block, to)) return state.SkipWithError("a block did not come");
      }
    }
    fetched += static_cast<double>((hit.clock.now() - start).value);
  }
  state.counters["of_memcpy"] = fetched / copied;
}
BENCHMARK(fetch_from_arena)->Unit(benchmark::kMillisecond)->UseRealTime();

/// Medians of what hits from the store cost.
class HitTimes {
 public:
  /// Fetches `keys` and takes them layer by layer. False: something did not come, or not from the store.
  bool fetch(Hit& hit, kv_pool::PoolClient& pool, const std::vector<model::BlockKey>& keys) {
    const auto before = pool.stats();
    const double copied = hit.memcpy_ns(), cpu_before = hit.loader_cpu_ms();
    const base::Nanos start = hit.clock.now();
    auto ticket = pool.fetch(keys);
    if (!hit.ok || !ticket || !hit.take(*ticket, 0)) return false;
    const base::Nanos first = hit.clock.now() - start;
    first_layer_cpu_ms_.push_back(hit.loader_cpu_ms() - cpu_before);
    for (std::uint32_t layer = 1; layer < 4; ++layer)
      if (!hit.take(*ticket, layer)) return false;
    const base::Nanos whole = hit.clock.now() - start;
    cpu_ms_.push_back(hit.loader_cpu_ms() - cpu_before);
    ms_.push_back(static_cast<double>(whole.value) / 1e6);
    of_memcpy_.push_back(static_cast<double>(whole.value) / copied);
    first_layer_at_.push_back(static_cast<double>(first.value) / static_cast<double>(whole.value));
    const auto after = pool.stats();
    return before && after && after->gets_file == before->gets_file + kHitBlocks;
  }
  void tell(benchmark::State& state) {
    state.counters["ms"] = median(ms_);
    state.counters["of_memcpy"] = median(of_memcpy_);
    state.counters["first_layer_at"] = median(first_layer_at_);
    state.counters["loader_cpu_ms"] = median(cpu_ms_);
    state.counters["first_layer_cpu_ms"] = median(first_layer_cpu_ms_);
  }

 private:
  static double median(std::vector<double> of) {
    if (of.empty()) return 0;
    std::ranges::sort(of);
    return of[of.size() / 2];
  }
  std::vector<double> ms_, of_memcpy_, first_layer_at_, cpu_ms_, first_layer_cpu_ms_;
};

/// Blocks that lie in the store: when the first owner layer of all of them is there, as a share of when all
/// is; it has a fifth of the bytes. Four such hits take turns in an arena that holds two of them, as in a
/// loader that has been running for a while.
void fetch_from_store(benchmark::State& state) {
  Hit hit;
  auto pool = hit.client();
  HitTimes times, first_round;  // some blocks are in the arena since they were put
  std::size_t turn = 0;
  for (; turn < 2UL * kHits; ++turn) first_round.fetch(hit, pool, hit.keys[turn % kHits]);
  for (auto _ : state)
    if (!times.fetch(hit, pool, hit.keys[turn++ % kHits])) state.SkipWithError("not fetched");
  times.tell(state);
}
BENCHMARK(fetch_from_store)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(30);

/// The same as the first thing that a new loader does.
void fetch_from_store_anew(benchmark::State& state) {
  Hit hit;
  HitTimes times;
  for (auto _ : state) {
    state.PauseTiming();
    hit.loader.end(SIGTERM);
    hit.loader.start();
    auto pool = hit.client();
    state.ResumeTiming();
    if (!times.fetch(hit, pool, hit.keys[0])) state.SkipWithError("not fetched");
  }
  times.tell(state);
}
BENCHMARK(fetch_from_store_anew)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(9);

}  // namespace
