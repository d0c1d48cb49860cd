#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

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

// Bytes of a block: one of DeepSeek-V4.1-Flash, one of SmolLM2-135M in f32.
constexpr std::int64_t kV41 = 114'048, kSmolLm2 = 30LL * 2 * 3 * 64 * 128 * 4;

void match(benchmark::State& state) {
  Pool pool(4'096, 256);
  std::vector<model::BlockKey> keys;
  const std::vector<std::byte> block(4'096);
  for (std::uint64_t n = 0; n < static_cast<std::uint64_t>(state.range(0)); ++n) {
    keys.push_back(key(n));
    if (!pool.client.put(key(n), block)) state.SkipWithError("put failed");
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
    if (!pool.client.put(key(n), block)) state.SkipWithError("put failed");
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
  for (auto _ : state)
    if (!pool.client.put(key(n++), block)) state.SkipWithError("put failed");
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

}  // namespace
