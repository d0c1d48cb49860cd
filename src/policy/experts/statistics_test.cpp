#include "policy/experts/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <map>

#include "base/prng.h"

namespace trimtab::experts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

StatisticsConfig small_config() {
  StatisticsConfig config;
  config.shape = {.experts = 3, .slots = 4, .ranks = 2, .nodes = 1, .groups = 1};
  config.layers = 1;
  config.window_steps = 2;
  config.interval_steps = 8;
  return config;
}

std::string fault(const StatisticsConfig& config) {
  const auto status = check(config);
  return status.has_value() ? std::string() : status.error().message;
}

TEST(StatisticsPreset, PrefillAndDecodeAreThePublishedOnes) {
  const StatisticsConfig prefill = preset(Phase::kPrefill, 384, 4, 40);
  EXPECT_EQ(prefill.shape.slots, 400);
  EXPECT_EQ(prefill.window_steps, 100);
  EXPECT_EQ(prefill.interval_steps, 1000);
  const StatisticsConfig decode = preset(Phase::kDecode, 384, 64, 40);
  EXPECT_EQ(decode.shape.slots, 448);
  EXPECT_EQ(decode.shape.slots_per_rank(), 7);
  EXPECT_EQ(decode.window_steps, 1000);
  EXPECT_EQ(decode.interval_steps, 10000);
}

TEST(StatisticsPreset, TotalIsRoundedUpToAMultipleOfTheRanks) {
  for (const std::int32_t ranks : {3, 5, 7, 24, 36, 320}) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      const StatisticsConfig config = preset(phase, 256, ranks, 1);
      EXPECT_EQ(config.shape.slots % ranks, 0);
      EXPECT_GE(config.shape.redundant(), ranks * (phase == Phase::kPrefill ? 4 : 1));
      EXPECT_LT(config.shape.redundant(), ranks * (phase == Phase::kPrefill ? 5 : 2));
      EXPECT_TRUE(check(config).has_value()) << fault(config);
    }
  }
  // One rank cannot use a copy; two experts on two ranks have two copies at most.
  EXPECT_EQ(preset(Phase::kPrefill, 8, 1, 1).shape.slots, 8);
  EXPECT_EQ(preset(Phase::kPrefill, 2, 2, 1).shape.slots, 4);
}

TEST(StatisticsConfig, FaultsNameTheValueAndTheFix) {
  const auto with = [](auto change) {
    StatisticsConfig config = small_config();
    change(config);
    return fault(config);
  };
  EXPECT_EQ(with([](auto&) {}), "");
  EXPECT_THAT(with([](auto& c) { c.window_steps = -1; }), HasSubstr("window of -1 steps: use 100"));
  EXPECT_THAT(with([](auto& c) { c.interval_steps = -4; }), HasSubstr("interval of -4 steps: use 0"));
  EXPECT_THAT(with([](auto& c) { c.window_steps = 0; }), HasSubstr("window of 0 steps"));
  EXPECT_THAT(with([](auto& c) { c.window_steps = 9; }),
              HasSubstr("longer than the interval of 8: use at most 8"));
  EXPECT_THAT(with([](auto& c) { c.shape.slots = 5; }), HasSubstr("use 6 (3 redundant)"));
  EXPECT_THAT(with([](auto& c) { c.shape.slots = 2; }), HasSubstr("use at least 4"));
  EXPECT_THAT(with([](auto& c) { c.layers = 0; }), HasSubstr("0 layers"));
  EXPECT_THAT(with([](auto& c) { c.local_rank = 2; }), HasSubstr("local rank 2"));
  EXPECT_THAT(with([](auto& c) { c.memory_bytes_max = 100; }), HasSubstr("more than the 100 allowed"));
  // A window without an interval is legal: whoever plans by hand wants it. So is neither.
  EXPECT_EQ(with([](auto& c) { c.interval_steps = 0; }), "");
  EXPECT_EQ(with([](auto& c) { c.interval_steps = 0, c.window_steps = 0; }), "");
  // Sizes whose product leaves 64 bits are too much memory, not an overflow.
  EXPECT_THAT(with([](auto& c) {
                c.shape = {.experts = 1 << 20, .slots = 1 << 20, .ranks = 1, .nodes = 1, .groups = 1};
                c.layers = 1 << 16;
                c.window_steps = 1 << 20;
                c.interval_steps = 1 << 21;
              }),
              HasSubstr("shorter window"));
}

TEST(Statistics, MemoryIsWhatTheHeaderSays) {
  const StatisticsConfig config = preset(Phase::kPrefill, 384, 8, 40);
  EXPECT_EQ(Statistics::memory_bytes(config),
            std::int64_t{101} * 40 * (384 + 2) * 8 + 40 * std::int64_t{config.shape.slots} * 4 + 8);
}

TEST(Statistics, FoldsSlotsToExpertsUnderTheMapInForce) {
  auto made = Statistics::make(small_config(), std::vector<std::int32_t>{0, 1, 2, 0});
  ASSERT_TRUE(made.has_value());
  Statistics& statistics = *made;
  ASSERT_TRUE(statistics.add(0, std::vector<std::int32_t>{10, 20}).has_value());
  ASSERT_TRUE(statistics.add(1, std::vector<std::int32_t>{30, 40}).has_value());
  EXPECT_EQ(statistics.end_step(), StepOutcome::kRecorded);
  EXPECT_THAT(statistics.window(0), ElementsAre(50, 20, 30));
  EXPECT_EQ(statistics.rank_load(0, 0).busiest_tokens, 70);
  EXPECT_EQ(statistics.rank_load(0, 0).total_tokens, 100);
  EXPECT_DOUBLE_EQ(statistics.measured_balance(1), 1.4);

  ASSERT_TRUE(statistics.set_map(0, std::vector<std::int32_t>{2, 1, 1, 0}).has_value());
  ASSERT_TRUE(statistics.add(1, std::vector<std::int32_t>{3, 4}).has_value());
  ASSERT_TRUE(statistics.add(0, std::vector<std::int32_t>{1, 2}).has_value());
  EXPECT_EQ(statistics.end_step(), StepOutcome::kRecorded);
  EXPECT_THAT(statistics.window(0), ElementsAre(50, 20, 30, 4, 5, 1));
  EXPECT_EQ(statistics.load_window(0)->totals()[1], 25);
}

TEST(Statistics, MapCannotChangeUnderReports) {
  auto made = Statistics::make(small_config(), std::vector<std::int32_t>{0, 1, 2, 0});
  ASSERT_TRUE(made->add(0, std::vector<std::int32_t>{1, 1}).has_value());
  const auto refused = made->set_map(0, std::vector<std::int32_t>{0, 1, 2, 1});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("end the step first"));
  EXPECT_FALSE(made->reshape(small_config().shape, std::vector<std::int32_t>{0, 1, 2, 1}).has_value());
}

TEST(Statistics, BadReportsChangeNothing) {
  auto made = Statistics::make(small_config(), std::vector<std::int32_t>{0, 1, 2, 0});
  Statistics& statistics = *made;
  const auto message = [](const base::Status& status) {
    return status ? std::string() : status.error().message;
  };
  EXPECT_THAT(message(statistics.add(0, std::vector<std::int32_t>{5, -2})), HasSubstr("-2 tokens"));
  EXPECT_THAT(message(statistics.add(0, std::vector<std::int32_t>{5, 2}, std::vector<std::int32_t>{0, 3})),
              HasSubstr("2 tokens of which 3 are padding"));
  EXPECT_THAT(message(statistics.add(0, std::vector<std::int32_t>{5})), HasSubstr("1 counts"));
  EXPECT_THAT(message(statistics.add(2, std::vector<std::int32_t>{5, 2})), HasSubstr("rank 2"));
  EXPECT_EQ(message(statistics.add(0, std::vector<std::int32_t>{5, 2}, std::vector<std::int32_t>{1, 2})), "");
  EXPECT_THAT(message(statistics.add(0, std::vector<std::int32_t>{5, 2})), HasSubstr("twice"));
  EXPECT_EQ(message(statistics.add(1, std::vector<std::int32_t>{0, 0})), "");
  EXPECT_EQ(statistics.end_step(), StepOutcome::kRecorded);
  EXPECT_THAT(statistics.window(0), ElementsAre(4, 0, 0));
}

TEST(Statistics, CountsBeyond32BitsAddUpExactly) {
  auto made = Statistics::make(small_config(), std::vector<std::int32_t>{0, 1, 2, 0});
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  ASSERT_TRUE(made->add(0, std::vector<std::int32_t>{kMost, 0}).has_value());
  ASSERT_TRUE(made->add(1, std::vector<std::int32_t>{0, kMost}).has_value());
  made->end_step();
  EXPECT_EQ(made->window(0)[0], 2 * std::int64_t{kMost});
}

TEST(Statistics, FirstIsDueAfterAQuarterThenEveryInterval) {
  StatisticsConfig config = small_config();
  config.interval_steps = 1000;
  auto made = Statistics::make(config, std::vector<std::int32_t>{0, 1, 2, 0});
  std::vector<int> due;
  for (int step = 1; step <= 3300; ++step) {
    for (std::int32_t rank = 0; rank < 2; ++rank)
      ASSERT_TRUE(made->add(rank, std::vector<std::int32_t>{1, 1}).has_value());
    made->end_step();
    if (!made->due()) continue;
    due.push_back(step);
    made->restart_interval();
  }
  EXPECT_THAT(due, ElementsAre(250, 1250, 2250, 3250));
  // An interval shorter than four steps is due after one.
  config.interval_steps = config.window_steps = 2;
  made = Statistics::make(config, std::vector<std::int32_t>{0, 1, 2, 0});
  EXPECT_FALSE(made->due());
  made->end_step();
  EXPECT_TRUE(made->due());
}

TEST(Statistics, StaysDueAndSaysHowLongUntilSomebodyActs) {
  auto made = Statistics::make(small_config(), std::vector<std::int32_t>{0, 1, 2, 0});
  for (int step = 0; step < 100; ++step) made->end_step();  // no rank reports: yet time passes
  EXPECT_TRUE(made->due());
  EXPECT_EQ(made->overdue_steps(), 98);
  EXPECT_EQ(made->incomplete_steps(), 100);
  EXPECT_EQ(made->steps(), 0);
  const auto window = made->load_window(0);
  ASSERT_FALSE(window.has_value());
  EXPECT_THAT(window.error().message, HasSubstr("empty"));
  made->restart_interval();
  EXPECT_EQ(made->overdue_steps(), 0);
  EXPECT_FALSE(made->due());
}

TEST(Statistics, WarmUpAndIncompleteStepsStayOut) {
  auto made = Statistics::make(small_config(), std::vector<std::int32_t>{0, 1, 2, 0});
  const auto report = [&](std::int32_t rank, std::int32_t tokens) {
    ASSERT_TRUE(made->add(rank, std::vector<std::int32_t>{tokens, tokens}).has_value());
  };
  report(0, 7), report(1, 7);
  EXPECT_EQ(made->end_step(StepUse::kIgnore), StepOutcome::kIgnored);
  EXPECT_EQ(made->counted_steps(), 0);
  report(0, 9);
  EXPECT_EQ(made->end_step(), StepOutcome::kIncomplete);
  EXPECT_EQ(made->counted_steps(), 1);
  report(0, 1), report(1, 1);
  EXPECT_EQ(made->end_step(), StepOutcome::kRecorded);
  EXPECT_THAT(made->window(0), ElementsAre(2, 1, 1));
}

TEST(Statistics, RanksOwnPartsAddUpToTheWhole) {
  StatisticsConfig config = small_config();
  const std::vector<std::int32_t> map{0, 1, 2, 0};
  auto all = Statistics::make(config, map);
  std::vector<Statistics> parts;
  for (config.local_rank = 0; config.local_rank < 2; ++config.local_rank)
    parts.push_back(std::move(*Statistics::make(config, map)));
  EXPECT_FALSE(parts[0].add(1, std::vector<std::int32_t>{1, 1}).has_value());
  for (int step = 0; step < 5; ++step) {
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      const std::vector<std::int32_t> counts{step * 3 + rank, step + 11 * rank};
      ASSERT_TRUE(all->add(rank, counts).has_value());
      ASSERT_TRUE(parts[at(rank)].add(rank, counts).has_value());
      EXPECT_EQ(parts[at(rank)].end_step(), StepOutcome::kRecorded);
    }
    all->end_step();
  }
  std::vector<std::int64_t> sum = parts[0].windows();
  const std::vector<std::int64_t> other = parts[1].windows();
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  EXPECT_EQ(sum, all->windows());
}

TEST(Statistics, WindowOutlivesAChangeOfRanks) {
  auto made = Statistics::make(small_config(), std::vector<std::int32_t>{0, 1, 2, 0});
  for (std::int32_t rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(made->add(rank, std::vector<std::int32_t>{5, 6}).has_value());
  made->end_step();
  const Shape grown{.experts = 3, .slots = 6, .ranks = 3, .nodes = 1, .groups = 1};
  ASSERT_TRUE(made->reshape(grown, std::vector<std::int32_t>{0, 1, 2, 0, 1, 2}).has_value());
  for (std::int32_t rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(made->add(rank, std::vector<std::int32_t>{1, 1}).has_value());
  EXPECT_EQ(made->end_step(), StepOutcome::kRecorded);
  EXPECT_THAT(made->window(0), ElementsAre(11, 6, 5, 2, 2, 2));
  EXPECT_DOUBLE_EQ(made->measured_balance(2), 1);  // only the step of the ranks that are there
  const Shape other{.experts = 4, .slots = 4, .ranks = 2, .nodes = 1, .groups = 1};
  EXPECT_THAT(made->reshape(other, std::vector<std::int32_t>{0, 1, 2, 3}).error().message,
              HasSubstr("4 experts"));
}

/// Against the plainest record of all tokens: any steps, maps changed between them, some ignored.
RC_GTEST_PROP(Statistics, WindowIsTheLastRecordedStepsWhateverTheMaps, (std::uint64_t seed)) {
  base::Prng prng(seed);
  StatisticsConfig config;
  const auto experts = static_cast<std::int32_t>(1 + prng.below(5)),
             ranks = static_cast<std::int32_t>(1 + prng.below(3));
  const auto width = std::min(experts, (experts + ranks - 1) / ranks + 1);
  config.shape = {.experts = experts, .slots = width * ranks, .ranks = ranks, .nodes = 1, .groups = 1};
  config.layers = static_cast<std::int32_t>(1 + prng.below(3));
  config.window_steps = static_cast<std::int32_t>(1 + prng.below(4));
  std::vector<std::int32_t> maps;
  const auto draw_map = [&] {
    SlotMap map = initial_map(config.shape);
    prng.shuffle(std::span(map));
    return map;
  };
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const SlotMap map = draw_map();
    maps.insert(maps.end(), map.begin(), map.end());
  }
  auto made = Statistics::make(config, maps);
  RC_ASSERT(made.has_value());
  std::vector<std::vector<std::int64_t>> recorded;
  for (int step = 0; step < 12; ++step) {
    if (prng.below(3) == 0) {
      const auto layer = static_cast<std::int32_t>(prng.below(at(config.layers)));
      const SlotMap map = draw_map();
      RC_ASSERT(made->set_map(layer, map).has_value());
      std::copy(map.begin(), map.end(), maps.begin() + layer * std::ptrdiff_t{config.shape.slots});
    }
    std::vector<std::int64_t> tokens(at(config.layers) * at(experts));
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      std::vector<std::int32_t> counts(at(config.layers) * at(width)), padding(counts.size());
      for (std::size_t i = 0; i < counts.size(); ++i) {
        padding[i] = static_cast<std::int32_t>(prng.below(3));
        counts[i] = padding[i] + static_cast<std::int32_t>(prng.below(100));
        const std::size_t layer = i / at(width), slot = at(rank) * at(width) + i % at(width);
        const auto expert = at(maps[layer * at(config.shape.slots) + slot]);
        tokens[layer * at(experts) + expert] += counts[i] - padding[i];
      }
      RC_ASSERT(made->add(rank, counts, padding).has_value());
    }
    const bool ignored = prng.below(4) == 0;
    made->end_step(ignored ? StepUse::kIgnore : StepUse::kCount);
    if (!ignored) recorded.push_back(tokens);
    if (recorded.size() > at(config.window_steps)) recorded.erase(recorded.begin());
    std::vector<std::int64_t> expected;
    for (const auto& row : recorded) expected.insert(expected.end(), row.begin(), row.end());
    RC_ASSERT(made->windows() == expected);
  }
}

TEST(CountTokens, PaddingAndMaskedChoicesDoNotCount) {
  const Shape shape{.experts = 4, .slots = 6, .ranks = 2, .nodes = 1, .groups = 1};
  const std::vector<std::int32_t> ids{0, 3, 3, -1,
                                      5, 4, 3, 3};  // four tokens of two choices; the last is padding
  std::vector<std::int32_t> counts{1, 0, 0};
  ASSERT_TRUE(count_tokens(shape, 1, ids, 2, 3, counts).has_value());
  EXPECT_THAT(counts, ElementsAre(3, 1, 1));
  const std::vector<std::int32_t> wrong{0, 6};
  const auto refused = count_tokens(shape, 1, wrong, 2, 1, counts);
  EXPECT_THAT(refused.error().message, HasSubstr("slot 6"));
  EXPECT_THAT(counts, ElementsAre(3, 1, 1));
  EXPECT_THAT(count_tokens(shape, 1, ids, 2, 5, counts).error().message, HasSubstr("5 valid tokens"));
  EXPECT_THAT(count_tokens(shape, 1, ids, 3, 1, counts).error().message, HasSubstr("top_k 3"));
  EXPECT_THAT(count_tokens(shape, 2, ids, 2, 1, counts).error().message, HasSubstr("rank 2"));
}

}  // namespace
}  // namespace trimtab::experts
