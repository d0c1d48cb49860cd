#include <gtest/gtest.h>

#include "policy/decode/closed_loop_model.h"

namespace trimtab::policy {
namespace {

/// Mean over three seeds: single runs differ by about half a point.
double balance(std::string_view policy) {
  double sum = 0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    ClosedLoop loop;
    loop.steps = 1'500;
    loop.seed = seed;
    sum += share_of_ideal(policy, loop);
  }
  ::testing::Test::RecordProperty(std::string(policy), std::to_string(sum / 3));
  return sum / 3;
}

TEST(DecodeBalance, BothDimensionsBeatOneAndOursBeatsThePublishedRuleAtSmallBatches) {
  const double round_robin = balance("round_robin"), fewest = balance("total_requests"),
               least_kv = balance("total_tokens"), dualpath = balance("dualpath"),
               waterline = balance("waterline");
  EXPECT_GT(fewest, round_robin + 0.02);
  EXPECT_GT(dualpath, fewest + 0.02);
  EXPECT_GT(dualpath, least_kv + 0.02);
  EXPECT_GT(waterline, dualpath + 0.003);
}

}  // namespace
}  // namespace trimtab::policy
