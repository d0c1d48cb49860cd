// Tokens per second of the tokenizer, on one thread. The model comes from TRIMTAB_MODEL; the texts are made
// here.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/prng.h"
#include "text/answer_memory.h"
#include "text/incremental_detokenizer.h"
#include "text/tokenizer.h"

namespace {

using namespace trimtab;

const text::Tokenizer* tokenizer() {
  static const std::optional<text::Tokenizer> loaded = []() -> std::optional<text::Tokenizer> {
    const char* path = std::getenv("TRIMTAB_MODEL");
    if (path == nullptr) return std::nullopt;
    const auto file = gguf::GgufFile::open(path);
    if (!file) return std::nullopt;
    auto made = text::Tokenizer::load(*file);
    if (!made) return std::nullopt;
    return std::move(*made);
  }();
  return loaded ? &*loaded : nullptr;
}

/// Words drawn with a skewed frequency, like real text: the cache meets most of them again.
std::string prose(std::size_t bytes) {
  static constexpr std::string_view kSyllables[] = {"the", "re", "con", "ing", "er",
                                                    "sta", "lo", "mi",  "na",  "tor"};
  base::Prng prng(11);
  std::vector<std::string> words;
  for (int i = 0; i < 20'000; ++i) {
    std::string word;
    for (std::uint64_t k = 0; k < 1 + prng.below(4); ++k) word += kSyllables[prng.below(10)];
    words.push_back(word);
  }
  std::string text;
  while (text.size() < bytes) {
    const double u = prng.uniform();
    text += words[static_cast<std::size_t>(u * u * u * 19'999)];
    text += prng.below(12) == 0 ? ".\n" : " ";
  }
  return text;
}

std::string code(std::size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) {
    const std::string n = std::to_string(i * 7919 % 1000);
    text += "  if (items_[" + n + "].count() >= limit_" + n + ") {\n    return fail(Code::kTooLarge, \"" + n +
            " items\");\n  }\n";
  }
  return text;
}

void run(benchmark::State& state, const std::string& text) {
  if (tokenizer() == nullptr) return state.SkipWithError("set TRIMTAB_MODEL to the GGUF file");
  std::size_t tokens = 0;
  for (auto _ : state) {
    const auto ids = tokenizer()->encode(text);
    tokens += ids.size();
    benchmark::DoNotOptimize(ids.data());
  }
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
  state.counters["bytes_per_token"] = static_cast<double>(text.size()) *
                                      static_cast<double>(state.iterations()) / static_cast<double>(tokens);
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size()) *
                          static_cast<std::int64_t>(state.iterations()));
}

void encode_prose(benchmark::State& state) { run(state, prose(256 << 10)); }
void encode_code(benchmark::State& state) { run(state, code(256 << 10)); }
void encode_one_long_word(benchmark::State& state) {
  run(state, std::string(static_cast<std::size_t>(state.range(0)), 'a'));
}
void encode_white_space(benchmark::State& state) {
  run(state, std::string(static_cast<std::size_t>(state.range(0)), ' ') + "x");
}

void detokenize_one_token(benchmark::State& state) {
  if (tokenizer() == nullptr) return state.SkipWithError("set TRIMTAB_MODEL to the GGUF file");
  const auto ids = tokenizer()->encode(prose(64 << 10));
  text::IncrementalDetokenizer detokenizer(*tokenizer());
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(detokenizer.push(ids[at]));
    at = at + 1 == ids.size() ? 0 : at + 1;
  }
}

void find_answer(benchmark::State& state) {
  auto memory = text::AnswerMemory::open({});
  const std::vector<text::TokenId> ids(200, 7);
  for (std::uint64_t i = 0; i < 5'000; ++i) {
    if (!(*memory)->remember("answer " + std::to_string(i) + std::string(800, 'x'), i, ids)) return;
  }
  std::uint64_t i = 0;
  for (auto _ : state) {
    i = (i + 7919) % 5'000;
    benchmark::DoNotOptimize((*memory)->find("answer " + std::to_string(i) + std::string(800, 'x'), i));
  }
}

BENCHMARK(encode_prose)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_code)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_one_long_word)->Arg(1'000)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(encode_white_space)->Arg(100'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(detokenize_one_token);
BENCHMARK(find_answer);

}  // namespace
