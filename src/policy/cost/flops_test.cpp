#include "policy/cost/flops.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "config/profile.h"

namespace trimtab::policy {
namespace {

model::FlopsCost v41(bool compact) {
  const auto profile = config::load_profile("deepseek-v4.1-flash", "profiles");
  if (!profile) ADD_FAILURE() << base::to_string(profile.error());
  auto cost = std::get<model::FlopsCost>(profile->cost);
  cost.compact = compact;
  return cost;
}

std::int64_t naive_sum(std::int64_t n, std::int64_t ratio, std::int64_t cap, bool round_up) {
  std::int64_t sum = 0;
  for (std::int64_t t = 1; t <= n; ++t) {
    const std::int64_t items = round_up ? (t + ratio - 1) / ratio : t / ratio;
    sum += cap == 0 ? items : std::min(items, cap);
  }
  return sum;
}

TEST(CappedSum, EqualsTheSumForEverySmallCase) {
  for (std::int64_t ratio = 1; ratio <= 9; ++ratio) {
    for (std::int64_t cap = 0; cap <= 6; ++cap) {
      for (const bool round_up : {false, true}) {
        const CappedSum sum(ratio, cap, round_up);
        for (std::int64_t n = 0; n <= 80; ++n) {
          ASSERT_EQ(sum(n), naive_sum(n, ratio, cap, round_up))
              << n << ' ' << ratio << ' ' << cap << ' ' << round_up;
        }
        EXPECT_EQ(sum(-3), 0);
      }
    }
  }
}

RC_GTEST_PROP(CappedSum, EqualsTheSum, ()) {
  const auto ratio = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto cap = *rc::gen::inRange<std::int64_t>(0, 600);
  const auto n = *rc::gen::inRange<std::int64_t>(0, 30'000);
  const auto round_up = *rc::gen::arbitrary<bool>();
  RC_ASSERT(CappedSum(ratio, cap, round_up)(n) == naive_sum(n, ratio, cap, round_up));
}

/// Row by row, written from the published description and not from flops.cpp.
ChunkFlops naive_flops(const model::FlopsCost& cost, std::int64_t q, std::int64_t c, std::int64_t prompt) {
  ChunkFlops sum;
  const std::int64_t kept_from = std::max<std::int64_t>(prompt - cost.keep, 0);
  for (std::int64_t position = c; position < c + q; ++position) {
    const bool consumer = !cost.compact || position >= prompt - cost.keep || position == c + q - 1;
    std::int64_t attention = cost.compact ? cost.attention_row_producer : cost.attention_row;
    std::int64_t other = cost.other_row_producer + (cost.compact ? cost.other_moved : 0);
    const auto visible = [](const model::AttentionTerm& term, std::int64_t t) {
      const std::int64_t items = term.round_up ? (t + term.ratio - 1) / term.ratio : t / term.ratio;
      return term.cap == 0 ? items : std::min(items, term.cap);
    };
    for (const auto& term : cost.producer_terms) attention += term.flops * visible(term, position + 1);
    if (consumer) {
      if (cost.compact) attention += cost.attention_row_consumer;
      other += cost.other_row_consumer - (cost.compact ? cost.other_moved : 0);
      for (const auto& term : cost.consumer_terms) {
        const bool narrow = term.windowed && cost.compact;
        const std::int64_t t = narrow ? std::max<std::int64_t>(position + 1 - kept_from, 1) : position + 1;
        attention += term.flops * visible(term, t);
      }
    }
    attention += cost.key_projection_ratio1;
    sum.attention += attention;
    sum.total += attention + other;
  }
  std::int64_t groups = 0;
  for (std::int64_t t = c + 1; t <= c + q; ++t) groups += t % 2 == 0 ? 1 : 0;
  const std::int64_t projections = cost.key_projection_ratio2 * std::max<std::int64_t>(groups, 1);
  sum.attention += projections;
  sum.total += projections + cost.logits_row;
  return sum;
}

RC_GTEST_PROP(FlopsForm, EqualsTheSumOverRows, ()) {
  const auto compact = *rc::gen::arbitrary<bool>();
  const auto cost = v41(compact);
  const auto q = *rc::gen::inRange<std::int64_t>(1, 700);
  const auto c = *rc::gen::inRange<std::int64_t>(0, 20'000);
  const auto later = *rc::gen::inRange<std::int64_t>(0, 400);
  const FlopsForm form(cost);
  const ChunkFlops chunk = form.flops(q, c, c + q + later);
  const ChunkFlops naive = naive_flops(cost, q, c, c + q + later);
  RC_ASSERT(chunk.attention == naive.attention);
  RC_ASSERT(chunk.total == naive.total);
}

RC_GTEST_PROP(FlopsForm, RisesWithEveryToken, ()) {
  const FlopsForm form(v41(*rc::gen::arbitrary<bool>()));
  const auto c = *rc::gen::inRange<std::int64_t>(0, 900'000);
  const auto rest = *rc::gen::inRange<std::int64_t>(2, 40'000);
  const auto q = *rc::gen::inRange<std::int64_t>(0, rest);
  const ChunkFlops less = form.flops(q, c, c + rest);
  const ChunkFlops more = form.flops(q + 1, c, c + rest);
  RC_ASSERT(less.attention < more.attention);
  RC_ASSERT(less.total < more.total);
}

RC_GTEST_PROP(FlopsForm, SolveIsTheLargestThatFits, ()) {
  const FlopsForm form(v41(*rc::gen::arbitrary<bool>()));
  const auto attention_only = *rc::gen::arbitrary<bool>();
  const auto c = *rc::gen::inRange<std::int64_t>(0, 900'000);
  const auto rest = *rc::gen::inRange<std::int64_t>(1, 60'000);
  const auto q_max = *rc::gen::inRange<std::int64_t>(1, std::min<std::int64_t>(rest, 32'768) + 1);
  const auto budget = *rc::gen::inRange<std::int64_t>(0, 2'000'000'000);
  const auto value = [&](std::int64_t q) {
    if (q == 0) return std::int64_t{0};
    return attention_only ? form.attention_ns(q, c, c + rest) : form.whole_ns(q, c, c + rest);
  };
  const std::int64_t q = form.solve(attention_only, budget, c, c + rest, q_max);
  RC_ASSERT(q >= 0 && q <= q_max);
  RC_ASSERT(value(q) <= budget);
  if (q < q_max) RC_ASSERT(value(q + 1) > budget);
}

std::string tera(std::int64_t flops, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", digits, static_cast<double>(flops) * 1e-12);
  return text;
}

/// The published table, to its printed digits: total and, in brackets, attention, in TFLOPs of a single final
/// chunk. One cell differs in its last digit: the table prints 646.6 where the form gives 646.548, which
/// looks rounded twice (646.55); the row-by-row sum above agrees with the form.
TEST(FlopsForm, ReproducesThePublishedTable) {
  constexpr std::int64_t kBefore[] = {0, 8'192, 96'896, 250'000, 500'000};
  struct Row {
    bool compact;
    std::int64_t q;
    const char* cells[5];
  };
  constexpr Row kTable[] = {
      {false, 128, {"4.18(1.47)", "4.88(2.17)", "5.01(2.30)", "5.21(2.50)", "5.54(2.83)"}},
      {false, 512, {"17.71(6.87)", "19.52(8.68)", "20.05(9.22)", "20.85(10.02)", "22.16(11.33)"}},
      {false, 3104, {"115.73(50.07)", "118.42(52.75)", "121.58(55.91)", "126.44(60.77)", "134.39(68.72)"}},
      {false, 8192, {"309.3(136.0)", "313.1(139.8)", "321.1(147.8)", "333.9(160.6)", "354.9(181.6)"}},
      {false, 32768, {"1251.7(558.5)", "1258.1(564.9)", "1288.4(595.2)", "1339.8(646.5)", "1423.7(730.4)"}},
      {true, 128, {"4.18(1.47)", "4.85(2.14)", "4.98(2.27)", "5.18(2.47)", "5.51(2.80)"}},
      {true, 512, {"11.37(4.35)", "12.44(5.42)", "12.79(5.77)", "13.36(6.34)", "14.29(7.27)"}},
      {true, 3104, {"60.80(25.54)", "62.26(27.00)", "64.01(28.75)", "67.02(31.76)", "71.93(36.67)"}},
      {true, 8192, {"158.5(67.8)", "160.2(69.5)", "164.7(74.0)", "172.5(81.8)", "185.2(94.5)"}},
      {true, 32768, {"632.3(273.9)", "635.3(276.8)", "653.2(294.7)", "684.1(325.6)", "734.6(376.1)"}},
  };
  for (const Row& row : kTable) {
    const FlopsForm form(v41(row.compact));
    const int digits = row.q < 8192 ? 2 : 1;
    for (int i = 0; i < 5; ++i) {
      const ChunkFlops chunk = form.flops(row.q, kBefore[i], kBefore[i] + row.q);
      EXPECT_EQ(tera(chunk.total, digits) + "(" + tera(chunk.attention, digits) + ")", row.cells[i])
          << (row.compact ? "compact" : "off") << " q=" << row.q << " c=" << kBefore[i];
    }
  }
}

TEST(FlopsForm, AChunkBeforeTheKeptRowsRunsOneConsumerRow) {
  const auto cost = v41(true);
  const FlopsForm form(cost);
  const auto last = form.flops(1'000, 0, 1'000).total;
  const auto early = form.flops(1'000, 0, 10'000).total;
  // 140 consumer rows against 1: some 139 x 18 GFLOP.
  EXPECT_GT(last - early, 139 * std::int64_t{15'000'000'000});
  EXPECT_LT(last - early, 139 * std::int64_t{20'000'000'000});
}

TEST(FlopsForm, BudgetBelowOneTokenAndBeyondAllTokens) {
  const FlopsForm form(v41(true));
  EXPECT_EQ(form.solve(true, 0, 0, 100, 100), 0);
  EXPECT_EQ(form.solve(true, -5, 0, 100, 100), 0);
  EXPECT_EQ(form.solve(true, INT64_MAX, 0, 100, 100), 100);
  EXPECT_EQ(form.solve(false, INT64_MAX, 0, 100, 0), 0);
}

}  // namespace
}  // namespace trimtab::policy
