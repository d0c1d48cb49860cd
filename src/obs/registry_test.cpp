#include "obs/registry.h"

#include <gmock/gmock.h>

namespace trimtab::obs {
namespace {

using ::testing::HasSubstr;

TEST(Registry, WritesCountersAndGaugesWithEscapedLabels) {
  Registry registry;
  registry.describe("trimtab_requests_total", "Requests by outcome.");
  registry.add("trimtab_requests_total", 1, {{"outcome", "o\"k\n"}});
  registry.add("trimtab_requests_total", 2, {{"outcome", "o\"k\n"}});
  registry.set("trimtab_queue_depth", 3.5);
  const std::string text = registry.prometheus_text();
  EXPECT_THAT(
      text,
      HasSubstr(
          "# HELP trimtab_requests_total Requests by outcome.\n# TYPE trimtab_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("trimtab_requests_total{outcome=\"o\\\"k\\n\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE trimtab_queue_depth gauge\ntrimtab_queue_depth 3.5\n"));
}

TEST(Registry, HistogramBucketsAreCumulativeAndUpperBoundsInclusive) {
  Registry registry;
  registry.describe("h", "", {1, 2});
  for (const double value : {0.5, 1.0, 1.5, 7.0}) registry.observe("h", value);
  const std::string text = registry.prometheus_text();
  EXPECT_THAT(
      text,
      HasSubstr(
          "h_bucket{le=\"1\"} 2\nh_bucket{le=\"2\"} 3\nh_bucket{le=\"+Inf\"} 4\nh_sum 10\nh_count 4\n"));
}

TEST(Registry, BoundsTheNumberOfSeriesAndCountsWhatItDrops) {
  Registry registry(2);
  for (int i = 0; i < 5; ++i) registry.set("g", i, {{"id", std::to_string(i)}});
  EXPECT_EQ(registry.value("g", {{"id", "1"}}), 1);
  EXPECT_EQ(registry.value("g", {{"id", "4"}}), 0);
  EXPECT_THAT(registry.prometheus_text(), HasSubstr("trimtab_metrics_dropped_series_total 3\n"));
}

}  // namespace
}  // namespace trimtab::obs
