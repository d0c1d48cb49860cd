#include "policy/admission/admission.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "base/prng.h"

namespace trimtab::policy {
namespace {

using base::Nanos;
using base::operator""_s;
using base::operator""_ms;
using model::RequestId;
using model::TierId;

AdmissionConfig config() {
  AdmissionConfig limits;
  limits.in_flight_max = 4;
  limits.queued_max = 3;
  limits.ttft_max = 10_s;
  return limits;
}

/// Two ranks for tiers 0 and 1, two for tier 2.
AdmissionPolicy policy(AdmissionConfig limits = config()) {
  AdmissionPolicy made(limits);
  made.observe_serving({{TierId{0}, TierId{1}, 2'000}, {TierId{2}, TierId{2}, 2'000}});
  return made;
}

void enqueue(AdmissionPolicy& made, std::uint64_t id, std::uint32_t tier, Nanos work) {
  made.accepted(RequestId{id});
  made.queued(RequestId{id}, TierId{tier}, work);
}

AdmissionRequest request(std::uint32_t tier, Nanos work, Nanos deadline = base::kForever) {
  return {RequestId{99}, TierId{tier}, work, deadline};
}

TEST(Admission, PredictsTheQueueOfItsOwnEnginesOverTheirRateAndItsOwnWork) {
  AdmissionPolicy made = policy();
  enqueue(made, 1, 0, 4_s);
  enqueue(made, 2, 1, 6_s);
  enqueue(made, 3, 2, 30_s);
  made.pulled(RequestId{3});
  enqueue(made, 3 + 1, 2, 2_s);
  made.ended(RequestId{1});
  // Tiers 0 and 1 share two ranks: 6 s over 2.
  AdmissionDecision decision = made.decide(request(0, 1_s), 0_s);
  EXPECT_TRUE(decision.accepted);
  EXPECT_EQ(decision.queued_quota, 6_s);
  EXPECT_EQ(decision.rate_permille, 2'000);
  EXPECT_EQ(decision.predicted_ttft, 4_s);
  EXPECT_EQ(made.decide(request(2, 500_ms), 0_s).predicted_ttft, 1'500_ms);
  // Tier 3 has no engine in this round: all queues over all engines.
  decision = made.decide(request(3, 1_s), 0_s);
  EXPECT_EQ(decision.queued_quota, 8_s);
  EXPECT_EQ(decision.predicted_ttft, 3_s);
}

TEST(Admission, AskedAgainARequestIsNotInItsOwnWay) {
  AdmissionConfig config;
  config.in_flight_max = 1;
  AdmissionPolicy made(config);
  made.observe_serving({{TierId{0}, TierId{3}, 1'000}});
  made.accepted(RequestId{99});
  EXPECT_TRUE(made.decide(request(0, 1_s), 0_s).accepted) << "it is the one in flight";
  AdmissionRequest other = request(0, 1_s);
  other.id = RequestId{100};
  EXPECT_EQ(made.decide(other, 0_s).rule, AdmissionRule::kInFlightLimit);
}

TEST(Admission, RefusesWhatWouldWaitTooLongAndSaysWhenToComeBack) {
  AdmissionPolicy made = policy();
  enqueue(made, 1, 0, 20_s);
  EXPECT_TRUE(made.decide(request(0, 0_s), 0_s).accepted);
  AdmissionDecision decision = made.decide(request(0, 2'500_ms), 0_s);
  EXPECT_FALSE(decision.accepted);
  EXPECT_EQ(decision.code, base::Code::kOverloaded);
  EXPECT_EQ(decision.rule, AdmissionRule::kTtftLimit);
  EXPECT_EQ(decision.predicted_ttft, 12'500_ms);
  EXPECT_EQ(decision.retry_after_s, 3) << "2.5 s too long, in whole seconds";
  EXPECT_EQ(made.decide(request(0, 1_ms), 0_s).retry_after_s, 1);
  EXPECT_EQ(describe(decision),
            "refused (ttft_limit): predicted TTFT 12.5 s, limit 10 s; 20 s queued ahead over 2.0 ranks; 1 in "
            "flight, 1 queued; retry after 3 s");
  decision = made.decide(request(0, 10'001_ms), 0_s);
  EXPECT_FALSE(decision.accepted);
  EXPECT_EQ(decision.retry_after_s, 0) << "an idle cluster could not do it either";
}

TEST(Admission, HoldsThePredictionAgainstTheDeadline) {
  AdmissionPolicy made = policy();
  enqueue(made, 1, 0, 6_s);
  EXPECT_TRUE(made.decide(request(0, 1_s, 104_s), 100_s).accepted);
  AdmissionDecision decision = made.decide(request(0, 1_s, 103_s), 100_s);
  EXPECT_EQ(decision.rule, AdmissionRule::kDeadlineTooNear);
  EXPECT_EQ(decision.code, base::Code::kOverloaded);
  EXPECT_EQ(decision.limit, 3_s);
  EXPECT_EQ(decision.retry_after_s, 1);
  decision = made.decide(request(0, 1_s, 100_s), 100_s);
  EXPECT_EQ(decision.rule, AdmissionRule::kDeadlinePassed);
  EXPECT_EQ(decision.code, base::Code::kDeadlineExceeded);
  EXPECT_EQ(decision.retry_after_s, 0);
}

TEST(Admission, PlainLimitsHoldWhateverIsPredicted) {
  AdmissionPolicy made = policy();
  for (std::uint64_t id = 1; id <= 3; ++id) enqueue(made, id, 0, 1_ms);
  AdmissionDecision decision = made.decide(request(0, 1_ms), 0_s);
  EXPECT_EQ(decision.rule, AdmissionRule::kQueueLimit);
  EXPECT_EQ(decision.code, base::Code::kOverloaded);
  EXPECT_GE(decision.retry_after_s, 1);
  made.pulled(RequestId{1});
  EXPECT_TRUE(made.decide(request(0, 1_ms), 0_s).accepted);
  made.accepted(RequestId{4});
  decision = made.decide(request(0, 1_ms), 0_s);
  EXPECT_EQ(decision.rule, AdmissionRule::kInFlightLimit);
  EXPECT_EQ(decision.code, base::Code::kResourceExhausted);
  EXPECT_EQ(base::http_status(decision.code), 429);
  EXPECT_TRUE(made.ended(RequestId{2}));
  EXPECT_TRUE(made.decide(request(0, 1_ms), 0_s).accepted);
}

TEST(Admission, WithoutEnginesNothingIsPredicted) {
  AdmissionPolicy made(config());
  const AdmissionDecision decision = made.decide(request(0, 1_ms), 0_s);
  EXPECT_EQ(decision.rule, AdmissionRule::kNoEngine);
  EXPECT_EQ(decision.code, base::Code::kUnavailable);
  EXPECT_EQ(decision.retry_after_s, 1);
}

TEST(Admission, ARequeueReplacesAndHugeQueuesDoNotOverflow) {
  AdmissionPolicy made = policy();
  enqueue(made, 1, 0, 5_s);
  made.queued(RequestId{1}, TierId{2}, 7_s);  // it grew and changed its tier
  EXPECT_EQ(made.queued_quota(TierId{0}), 0_s);
  EXPECT_EQ(made.queued_quota(TierId{2}), 7_s);
  EXPECT_EQ(made.queued_requests(), 1);
  made.observe_serving({{TierId{0}, TierId{3}, 1}});
  made.queued(RequestId{1}, TierId{0}, Nanos{INT64_MAX / 4});
  const AdmissionDecision decision = made.decide(request(0, 1_s), 0_s);
  EXPECT_FALSE(decision.accepted);
  EXPECT_EQ(decision.retry_after_s, 600) << "never more than retry_after_max";
}

RC_GTEST_PROP(Admission, AccountsAgreeWithAPlainListAndRetryHelps, (std::uint64_t seed)) {
  AdmissionConfig limits;
  limits.in_flight_max = limits.queued_max = 1'000;
  limits.ttft_max = 3_s;
  AdmissionPolicy made = policy(limits);
  base::Prng prng(seed);
  std::map<RequestId, std::pair<TierId, Nanos>> queued;
  std::map<RequestId, bool> alive;
  for (std::uint64_t step = 1; step < 200; ++step) {
    const TierId tier{static_cast<std::uint32_t>(prng.below(3))};
    const Nanos work{static_cast<std::int64_t>(prng.below(2'000'000'000))};
    const AdmissionDecision decision = made.decide({RequestId{step}, tier, work, base::kForever}, 0_s);
    Nanos ahead;
    for (const auto& [id, place] : queued)
      if ((place.first.value == 2) == (tier.value == 2)) ahead += place.second;
    RC_ASSERT(decision.queued_quota == ahead);
    RC_ASSERT(decision.predicted_ttft == ahead / 2 + work);
    RC_ASSERT(decision.accepted == (decision.predicted_ttft <= 3_s));
    if (!decision.accepted) {
      // After the suggested wait the engines have served enough of the queue for the prediction to hold.
      const Nanos served{decision.retry_after_s * 1'000'000'000};
      RC_ASSERT(decision.retry_after_s >= 1);
      RC_ASSERT(std::max(Nanos{}, ahead / 2 - served) + work <= 3_s);
    } else {
      made.accepted(RequestId{step});
      made.queued(RequestId{step}, tier, work);
      alive[RequestId{step}] = true;
      queued[RequestId{step}] = {tier, work};
    }
    if (!alive.empty() && prng.below(2) == 0) {
      const RequestId id = std::next(alive.begin(), static_cast<long>(prng.below(alive.size())))->first;
      queued.erase(id);
      if (prng.below(2) == 0) {
        made.pulled(id);
      } else {
        RC_ASSERT(made.ended(id));
        alive.erase(id);
      }
    }
    RC_ASSERT(made.in_flight() == static_cast<std::int64_t>(alive.size()));
    RC_ASSERT(made.queued_requests() == static_cast<std::int64_t>(queued.size()));
  }
  for (const auto& [id, lives] : alive) RC_ASSERT(made.ended(id));
  for (std::uint32_t tier = 0; tier < 3; ++tier) RC_ASSERT(made.queued_quota(TierId{tier}) == 0_s);
}

}  // namespace
}  // namespace trimtab::policy
