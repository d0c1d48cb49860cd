#include "policy/cost/quadratic.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace trimtab::policy {
namespace {

/// In halves and picoseconds by hand, one addition per query: query i of the chunk sees c + i + 1/2 keys.
std::int64_t naive_ns(std::int64_t token_ps, std::int64_t pair_ps, std::int64_t q, std::int64_t c) {
  __int128 half_ps = 0;
  for (std::int64_t i = 0; i < q; ++i)
    half_ps += 2 * token_ps + static_cast<__int128>(pair_ps) * (2 * (c + i) + 1);
  return static_cast<std::int64_t>(half_ps / 2000);
}

TEST(QuadraticForm, EverySmallCaseIsExactAndSolvedExactly) {
  for (const std::int64_t token_ps : {0, 1, 700, 2000, 9999}) {
    for (const std::int64_t pair_ps : {0, 1, 500, 999, 2000, 12345}) {
      const QuadraticForm form({0, token_ps, pair_ps});
      for (std::int64_t c = 0; c <= 6; ++c) {
        for (std::int64_t q = 0; q <= 12; ++q) {
          ASSERT_EQ(form.whole_ns(q, c), naive_ns(token_ps, pair_ps, q, c));
          ASSERT_EQ(form.attention_ns(q, c), naive_ns(0, pair_ps, q, c));
        }
        for (std::int64_t budget = -1; budget <= 300; ++budget) {
          std::int64_t whole = 0, attention = 0;
          for (std::int64_t q = 1; q <= 12; ++q) {
            if (naive_ns(token_ps, pair_ps, q, c) <= budget) whole = q;
            if (naive_ns(0, pair_ps, q, c) <= budget) attention = q;
          }
          ASSERT_EQ(form.solve_whole(budget, c, 12), whole)
              << token_ps << ' ' << pair_ps << ' ' << c << ' ' << budget;
          ASSERT_EQ(form.solve_attention(budget, c, 12), attention);
        }
      }
    }
  }
}

RC_GTEST_PROP(QuadraticForm, SolveIsTheLargestThatFits, ()) {
  const auto token = *rc::gen::inRange<std::int64_t>(0, 10'000'000'000);
  const auto pair = *rc::gen::inRange<std::int64_t>(0, 100'000'000);
  const auto c = *rc::gen::inRange<std::int64_t>(0, 1 << 20);
  const auto q_max = *rc::gen::inRange<std::int64_t>(1, 32'769);
  const auto budget = *rc::gen::inRange<std::int64_t>(0, 400'000'000'000);
  const QuadraticForm form({0, token, pair});
  const std::int64_t whole = form.solve_whole(budget, c, q_max);
  RC_ASSERT(form.whole_ns(whole, c) <= budget);
  if (whole < q_max) RC_ASSERT(form.whole_ns(whole + 1, c) > budget);
  const std::int64_t attention = form.solve_attention(budget, c, q_max);
  RC_ASSERT(form.attention_ns(attention, c) <= budget);
  if (attention < q_max) RC_ASSERT(form.attention_ns(attention + 1, c) > budget);
}

TEST(QuadraticForm, LongContextsOnSlowMachinesDoNotOverflow) {
  const QuadraticForm form({0, 1'000'000'000'000, 1'000'000'000'000});
  EXPECT_EQ(form.attention_ns(1, 0), 500'000'000);
  EXPECT_EQ(form.whole_ns(std::int64_t{1} << 32, std::int64_t{1} << 32), INT64_MAX) << "saturates";
  EXPECT_EQ(form.solve_whole(INT64_MAX, 0, 1000), 1000);
}

TEST(QuadraticForm, ADoubleRootThatRoundsUpIsPutRight) {
  // cost(q, 0) = q^2 / 2 ps * 2 ... at pair = 4000: q^2 * 2 ns. Budgets one below a square step are where a
  // root in doubles rounds to the wrong side.
  const QuadraticForm form({0, 0, 4000});
  for (std::int64_t q = 1; q < 3'000'000; q = q * 3 + 1) {
    EXPECT_EQ(form.solve_attention(2 * q * q, 0, INT32_MAX), q);
    EXPECT_EQ(form.solve_attention(2 * q * q - 1, 0, INT32_MAX), q - 1);
  }
}

}  // namespace
}  // namespace trimtab::policy
