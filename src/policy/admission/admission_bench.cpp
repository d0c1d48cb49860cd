#include <benchmark/benchmark.h>

#include "policy/admission/admission.h"

namespace trimtab::policy {
namespace {

/// One request with 100,000 queued: judged, accepted, queued; the oldest leaves.
void admission_decide(benchmark::State& state) {
  AdmissionConfig config;
  config.in_flight_max = config.queued_max = 1'000'000;
  AdmissionPolicy policy(config);
  policy.observe_serving(
      {{model::TierId{0}, model::TierId{1}, 8'000}, {model::TierId{2}, model::TierId{3}, 8'000}});
  std::uint64_t id = 0;
  const auto enqueue = [&] {
    policy.accepted(model::RequestId{id});
    policy.queued(model::RequestId{id}, model::TierId{static_cast<std::uint32_t>(id % 4)},
                  base::Nanos{1'000'000});
    ++id;
  };
  while (id < 100'000) enqueue();
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        policy.decide({model::RequestId{id}, model::TierId{1}, base::Nanos{500'000}}, base::Nanos{1}));
    enqueue();
    policy.ended(model::RequestId{id - 100'000});
  }
}
BENCHMARK(admission_decide);

}  // namespace
}  // namespace trimtab::policy
