#include <benchmark/benchmark.h>
#include <openssl/evp.h>

#include <memory>
#include <vector>

#include "kv/key_chain.h"
#include "kv/prefix_index.h"

namespace {

using namespace trimtab;

std::vector<std::int32_t> tokens_of(std::int64_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(i * 2654435761 % 129280));
  return tokens;
}

/// Block keys of a prompt (goal: 64K tokens in 1 ms).
void hash_chain(benchmark::State& state) {
  const auto tokens = tokens_of(state.range(0));
  const kv::BlockKey root = kv::root_key({"model", "f32", "tokenizer", "", ""});
  for (auto _ : state) benchmark::DoNotOptimize(kv::block_keys(root, tokens));
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}
BENCHMARK(hash_chain)->ArgName("tokens")->Arg(8192)->Arg(65536)->Arg(1 << 20);

/// The peer: one SHA-256 over the same token bytes, which no chain can beat.
void raw_sha256(benchmark::State& state) {
  const auto tokens = tokens_of(state.range(0));
  std::vector<unsigned char> digest(32);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  for (auto _ : state) {
    EVP_DigestInit_ex2(context.get(), EVP_sha256(), nullptr);
    EVP_DigestUpdate(context.get(), tokens.data(), tokens.size() * 4);
    EVP_DigestFinal_ex(context.get(), digest.data(), nullptr);
    benchmark::DoNotOptimize(digest);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}
BENCHMARK(raw_sha256)->ArgName("tokens")->Arg(65536);

/// Leading keys of a 100,000-token prompt in an index of `entries` blocks.
void prefix_match(benchmark::State& state) {
  const auto entries = static_cast<std::uint32_t>(state.range(0));
  kv::PrefixIndex index(entries);
  const auto chain = kv::block_keys(kv::root_key({}), tokens_of(757 * 128));
  for (std::uint32_t i = 0; i < 757; ++i) index.insert(chain[i], i);
  std::uint64_t filler = 1;
  while (!index.full()) {
    filler = filler * 6364136223846793005ULL + 1442695040888963407ULL;
    index.insert({filler, filler ^ (filler >> 29)}, 0);
  }
  for (auto _ : state) benchmark::DoNotOptimize(index.longest_prefix(chain));
  state.counters["keys/s"] =
      benchmark::Counter(757.0 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(prefix_match)->ArgName("entries")->Arg(4096)->Arg(1 << 20);

}  // namespace
