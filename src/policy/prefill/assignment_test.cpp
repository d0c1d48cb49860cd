#include "policy/prefill/assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace trimtab::policy {
namespace {

using base::Nanos;

PrefillAssigner assigner(std::string_view name, std::int64_t ceiling = 1'000) {
  return {prefill_assignment(name).value(), 7, ceiling};
}

TEST(PrefillAssignment, NamesAreKnownAndTyposAreNot) {
  for (const std::string_view name : prefill_assignment_names())
    EXPECT_TRUE(prefill_assignment(name).has_value());
  EXPECT_THAT(prefill_assignment("least_wrok").error().message,
              testing::HasSubstr("did you mean \"least_work\""));
}

TEST(PrefillAssignment, EachRuleLooksAtItsOwnMeasure) {
  const std::vector<AssignedLoad> ranks{
      {1, 900, Nanos{50}, true}, {9, 100, Nanos{90}, true}, {5, 500, Nanos{10}, true}};
  EXPECT_EQ(assigner("least_requests").choose(ranks), 0U);
  EXPECT_EQ(assigner("dualpath").choose(ranks), 1U);
  EXPECT_EQ(assigner("least_work").choose(ranks), 2U);
  EXPECT_EQ(assigner("dualpath", 99).choose(ranks), std::nullopt);
}

TEST(PrefillAssignment, RoundRobinTakesTurnsOverOpenRanks) {
  const std::vector<AssignedLoad> ranks{{0, 0, {}, true}, {0, 0, {}, false}, {0, 0, {}, true}};
  PrefillAssigner turns = assigner("round_robin");
  std::vector<std::uint32_t> chosen;
  for (int i = 0; i < 5; ++i) chosen.push_back(*turns.choose(ranks));
  EXPECT_EQ(chosen, (std::vector<std::uint32_t>{0, 2, 0, 2, 0}));
}

TEST(PrefillAssignment, RandomIsEvenAndTwoChoicesAreBetter) {
  std::vector<AssignedLoad> ranks(16, {0, 0, {}, true});
  std::map<std::string_view, std::int64_t> most;
  for (const std::string_view name : {"random", "power_of_two"}) {
    std::vector<AssignedLoad> loads = ranks;
    PrefillAssigner rule = assigner(name);
    for (int i = 0; i < 1'600; ++i) {
      AssignedLoad& load = loads[*rule.choose(loads)];
      ++load.requests;
      load.work += Nanos{1};
    }
    for (const AssignedLoad& load : loads) most[name] = std::max(most[name], load.requests);
  }
  EXPECT_LT(most["random"], 160);
  EXPECT_LT(most["power_of_two"], 106);
}

RC_GTEST_PROP(PrefillAssignment, OnlyOpenRanksAreChosen, (const std::vector<bool>& open)) {
  std::vector<AssignedLoad> ranks;
  for (const bool one : open) ranks.push_back({static_cast<std::int64_t>(ranks.size()), 0, Nanos{5}, one});
  const bool any = std::ranges::find(open, true) != open.end();
  for (const std::string_view name : prefill_assignment_names()) {
    if (name == "pull") continue;
    const auto chosen = assigner(name).choose(ranks);
    RC_ASSERT(chosen.has_value() == any);
    if (chosen) RC_ASSERT(ranks[*chosen].open);
  }
}

}  // namespace
}  // namespace trimtab::policy
