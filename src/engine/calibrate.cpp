#include "engine/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "engine/compute_clock.h"
#include "engine/local_model.h"
#include "kv/block_table.h"
#include "policy/cost/fit.h"

namespace trimtab::engine {

namespace {

/// Blocks that stand for the context, over and over: enough not to stay in the caches.
constexpr std::uint32_t kContextBlocks = 8;
constexpr std::int64_t kChunks[] = {16, 64, 192};
constexpr int kRepeats = 2;

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

/// The least processor time of a few runs of one step. What the context's KV holds does not matter for time.
base::Result<base::Nanos> time_step(LocalModel& model, std::int64_t q, std::int64_t c) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(q));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(i * 37 % model.shape().vocabulary);
  std::vector<std::uint32_t> blocks(kv::blocks_for(q + c));
  const auto fresh = static_cast<std::size_t>(c / model::kBlockTokens);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = i < fresh ? static_cast<std::uint32_t>(i % kContextBlocks)
                          : static_cast<std::uint32_t>(kContextBlocks + i - fresh);
  }
  Segment segment;
  segment.tokens = tokens;
  segment.start = c;
  segment.blocks = blocks;
  segment.window.ring = model.ring();
  base::Nanos least = base::kForever;
  for (int i = 0; i < kRepeats; ++i) {
    const base::Nanos began = compute_now();
    TRIMTAB_TRY(model.step({&segment, 1}));
    least = std::min(least, compute_now() - began);
  }
  return least;
}

}  // namespace

base::Result<Calibration> calibrate(const std::string& model_path, std::uint32_t ffn_experts) {
  constexpr std::uint32_t kBlocks = kContextBlocks + 4;
  auto model = LocalModel::open(model_path, ffn_experts, kBlocks);
  if (!model) return tl::unexpected(model.error());
  const std::int64_t context = (*model)->shape().context_tokens;
  std::vector<policy::StepSample> samples;
  for (const std::int64_t q : kChunks) {
    for (const std::int64_t c : {std::int64_t{0}, context / 4, context / 2}) {
      const std::int64_t aligned = c / model::kBlockTokens * model::kBlockTokens;
      if (aligned + q > context) continue;
      auto actual = time_step(**model, q, aligned);
      if (!actual) return tl::unexpected(actual.error());
      samples.push_back({{{base::TokenCount{q}, base::TokenCount{aligned}}}, *actual});
    }
  }
  auto fit = policy::fit_quadratic(samples);
  if (!fit) return tl::unexpected(fit.error());
  Calibration result;
  result.cost = fit->cost;
  result.machine =
      fmt::format("{}, {}", processor_name(), (*best_kernels())->isa == Isa::kAvx512 ? "AVX-512" : "AVX2");
  result.samples = static_cast<std::int64_t>(samples.size());
  result.error_ratio_mean = fit->error_ratio_mean;
  result.error_ratio_worst = fit->error_ratio_worst;
  return result;
}

}  // namespace trimtab::engine
