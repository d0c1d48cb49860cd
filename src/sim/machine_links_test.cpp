#include "sim/machine_links.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sim/host.h"
#include "sim/test_workloads.h"

namespace trimtab::sim {
namespace {

using model::EngineId;

/// Prefill: 2 engines x 2 machines of 2 ranks; decode: 1 group x 2 machines. 1 GB/s.
model::Scenario machines() {
  model::Scenario scenario = testing::small_fleet(2, 1);
  scenario.cluster.prefill.ranks = 4;
  scenario.network.machine_ranks = 2;
  scenario.network.machine_bytes_per_s = 1e9;
  return scenario;
}

TEST(MachineLinks, TransfersOfAMachineFollowOneAnother) {
  MachineLinks links(machines());
  const auto first = links.read({EngineId{0}, 0}, 1e6, Nanos{0});
  EXPECT_EQ(first.begins, Nanos{0});
  EXPECT_EQ(first.ends, Nanos{1'000'000});
  EXPECT_EQ(links.read({EngineId{0}, 1}, 2e6, Nanos{500'000}).ends, Nanos{3'000'000}) << "the same machine";
  EXPECT_EQ(links.read({EngineId{0}, 2}, 2e6, Nanos{500'000}).ends, Nanos{2'500'000}) << "the other one";
  EXPECT_EQ(links.read({EngineId{1}, 0}, 2e6, Nanos{500'000}).ends, Nanos{2'500'000}) << "another engine";
  const auto over = links.hand_over({EngineId{0}, 0}, {EngineId{0}, 3}, 1e6, Nanos{0});
  EXPECT_EQ(over.begins, Nanos{3'000'000}) << "behind the machine's reads";
  EXPECT_EQ(links.hand_over({EngineId{1}, 3}, {EngineId{0}, 2}, 1e6, Nanos{0}).begins, Nanos{4'000'000})
      << "its own link is idle, the receiver's is not";
  links.sent_earlier({EngineId{1}, 1}, 1e6, Nanos{0});
  EXPECT_EQ(links.read({EngineId{1}, 1}, 1e6, Nanos{0}).begins, Nanos{3'500'000});
  const NetworkOutcome outcome = links.outcome(Nanos{10'000'000});
  EXPECT_EQ(outcome.prefill_machines, 4U);
  EXPECT_EQ(outcome.machine_bytes, (std::vector<double>{4e6, 2e6, 4e6, 1e6, 0, 2e6}));
  for (std::size_t m = 0; m < 6; ++m)
    EXPECT_NEAR(outcome.machine_busy[m], outcome.machine_bytes[m] / 1e9 / 0.01, 1e-9) << m;
}

model::Trace one_request(std::int64_t prompt) {
  model::Trace trace;
  trace.name = "one";
  model::TraceRequest request;
  request.prompt_tokens = prompt;
  request.output_tokens = 10;
  trace.requests = {request};
  trace.conversations = 1;
  return trace;
}

model::Scenario with_network(double bytes_per_s) {
  model::Scenario scenario = testing::small_fleet();
  scenario.network.machine_bytes_per_s = bytes_per_s;
  return scenario;
}

TEST(MachineLinks, HalfTheBandwidthDelaysAHandOverByItsBytes) {
  const auto ttft = [](double bytes_per_s) {
    const Result result = testing::simulate(with_network(bytes_per_s), one_request(1'000));
    return (result.requests.at(0).first_token - result.requests.at(0).submitted).value;
  };
  // One chunk: all of its KV goes at the hand-over.
  const double bytes = 1'000 * kv_bytes_per_token(with_network(1e9));
  EXPECT_EQ(ttft(100e9), ttft(0)) << "the rank's own 50 GB/s limit it";
  EXPECT_NEAR(static_cast<double>(ttft(5e9) - ttft(10e9)), bytes / 10, 2) << "5 GB/s for 10";
  EXPECT_NEAR(static_cast<double>(ttft(0.5e9) - ttft(1e9)), bytes, 2) << "0.5 GB/s for 1";
}

TEST(MachineLinks, EveryByteOfAPromptGoesOnceAndItsReadsToo) {
  const model::Trace trace = testing::arrivals(300, 6.0, 5);
  const Result with = testing::simulate(with_network(2e9), trace),
               without = testing::simulate(with_network(0), trace);
  ASSERT_EQ(with.finished, 300U);
  EXPECT_TRUE(without.network.machine_bytes.empty());
  EXPECT_GT(with.all.ttft.mean_s(), without.all.ttft.mean_s());
  EXPECT_GT(with.network.wait.mean_s(), 0);
  std::int64_t handed_over = 0, hit = 0;
  for (const RequestTimes& request : with.requests) {
    hit += request.hit;
    handed_over += request.prompt;
  }
  ASSERT_EQ(with.preemptions + with.moves, 0U);
  const double each = kv_bytes_per_token(with_network(1));
  const auto prefill =
      with.network.machine_bytes.begin() + static_cast<std::ptrdiff_t>(with.network.prefill_machines);
  const double sent = std::accumulate(with.network.machine_bytes.begin(), prefill, 0.0);
  const double received = std::accumulate(prefill, with.network.machine_bytes.end(), 0.0);
  EXPECT_NEAR(sent, static_cast<double>(handed_over + hit) * each, 1.0);
  EXPECT_NEAR(received, static_cast<double>(handed_over) * each, 1.0);
}

TEST(MachineLinks, SlowerNetworksMakeFirstTokensLater) {
  const model::Trace trace = testing::arrivals(200, 6.0, 5);
  double before = 0;
  for (const double bytes_per_s : {100e9, 4e9, 1e9, 0.5e9}) {
    const Result result = testing::simulate(with_network(bytes_per_s), trace);
    EXPECT_EQ(result.finished, 200U);
    EXPECT_GE(result.all.ttft.mean_s(), before) << bytes_per_s;
    before = result.all.ttft.mean_s();
  }
}

}  // namespace
}  // namespace trimtab::sim
