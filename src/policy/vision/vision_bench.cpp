#include <benchmark/benchmark.h>

#include "policy/vision/image_size.h"
#include "policy/vision/vision.h"

namespace trimtab::policy {
namespace {

/// One image: chosen, started, and the oldest of 64 in flight finished.
void vision_choice(benchmark::State& state, std::string_view policy, std::uint32_t machines) {
  auto vision = std::move(*make_vision_policy({std::string(policy), 1}));
  for (std::uint32_t m = 0; m < machines; ++m)
    for (std::uint32_t e = 0; e < 8; ++e) vision->add_encoder({model::MachineId{m}, e});
  std::uint64_t id = 0;
  for (auto _ : state) {
    const VisionDecision decision = vision->decide(4'000);
    vision->started({model::RequestId{id}, 0}, *decision.encoder,
                    1'000 + static_cast<std::int64_t>(id % 7) * 500);
    if (id >= 64) vision->finished({model::RequestId{id - 64}, 0});
    ++id;
  }
}

void image_tokens_v41(benchmark::State& state) {
  model::VisionSpec spec;
  spec.formula = model::VisionSpec::Formula::kDeepSeekV41;
  spec.patch = 14;
  spec.downsample = 3;
  spec.min_pixels = 295'936;
  std::int64_t width = 4'000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(width);
    benchmark::DoNotOptimize(image_tokens(spec, width, 3'000));
  }
}
BENCHMARK(image_tokens_v41);

const bool kRegistered = [] {
  for (const std::string_view policy : vision_policy_names())
    for (const std::uint32_t machines : {2u, 64u})
      benchmark::RegisterBenchmark(
          ("vision_choice/policy:" + std::string(policy) + "/machines:" + std::to_string(machines)).c_str(),
          [policy, machines](benchmark::State& state) { vision_choice(state, policy, machines); });
  return true;
}();

}  // namespace
}  // namespace trimtab::policy
