#include <gmock/gmock.h>

#include "agents/testing/cluster_fixture.h"

namespace trimtab::agents::testing {
namespace {

using model::Role;

/// A profile with four window layers: an approximate hit computes 128 tokens again, an exact one 512.
class HostAudit : public ClusterFixture {
 protected:
  void SetUp() override {
    ClusterFixture::SetUp();
    kv.window_tokens = 128;
    kv.window_layers = 4;
    kv.ring_slots = 134;
    kv.state_bytes = base::Bytes{4 * 134 * 64};
    config.window_state.audits_per_1000 = 1000;
    config.prefill.engines = 1;
    config.prefill.ranks = 2;
  }
  void start() {
    start_all();
    each(Role::kPrefill, [](FakeMember& m) {
      m.true_logits = {1, 3, 1, 3};
      m.drifted_logits = {1, 3, 3, 3};
    });
  }
  /// 1,000 tokens of which the pool has 7 blocks and no machine a state, from the second call on.
  std::shared_ptr<RecordingSink> ask(std::uint32_t output = 2) {
    auto sink = std::make_shared<RecordingSink>();
    auto s = submission(prompt(1000), output);
    name = s.name;
    backend->submit(std::move(s), sink);
    return sink;
  }
  void fill_pool() {
    auto sink = ask();
    ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
    each(Role::kPrefill, [&](FakeMember& m) {
      for (const auto& start : m.started) prefixes->keys.insert(start.keys.begin(), start.keys.end());
      m.started.clear();
    });
  }
  nlohmann::json audits() { return status()["window_state"]["audits"]; }
  std::vector<wire::PrefillStart> runs() {
    std::vector<wire::PrefillStart> list;
    each(Role::kPrefill, [&](FakeMember& m) {
      for (const auto& start : m.started)
        if (start.window.audit == wire::DriftAudit::kTruth) list.push_back(start);
    });
    return list;
  }
  void pause(bool paused) {
    each(Role::kPrefill, [&](FakeMember& m) { m.paused = paused; });
  }
  std::string name;
};

TEST_F(HostAudit, AnApproximateHitIsComputedAgainAndCompared) {
  start();
  ASSERT_NO_FATAL_FAILURE(fill_pool());
  EXPECT_EQ(audits()["done"], 0) << "a miss is no hit";
  EXPECT_EQ(audits()["drift_mean"], nullptr);
  auto sink = ask(3);
  ASSERT_TRUE(turn_until([&] { return audits()["done"] == 1; })) << backend->status();
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  EXPECT_EQ(sink->tokens, expected_answer(prompt(1000), 3));
  EXPECT_EQ(sink->finished->hit_tokens, 768U);
  ASSERT_EQ(runs().size(), 1U);
  const wire::PrefillStart run = runs().front();
  EXPECT_EQ(run.tokens, prompt(1000));
  EXPECT_EQ(run.hit_tokens, 896U - 512U);
  EXPECT_EQ(run.window.kv_blocks, 7U);
  EXPECT_EQ(run.window.exact, 1);
  EXPECT_TRUE(run.window.offers.empty());
  EXPECT_EQ(run.hand_over, 0);
  const auto told = audits();
  EXPECT_EQ(told["per_1000"], 1000);
  EXPECT_EQ(told["drift_mean"], 1.0);
  EXPECT_EQ(told["drift_max"], 1.0);
  EXPECT_EQ(told["difference_max"], 2.0);
  EXPECT_EQ(told["same_token_ratio"], 1.0);
  EXPECT_EQ(told["computed_tokens"], 1000 - 384);
  EXPECT_EQ(status()["hits"]["approximate"], 1);
  EXPECT_EQ(status()["hits"]["hits"], 1) << "the second run is no request";
  EXPECT_EQ(registry.value("trimtab_requests_total", {{"outcome", "length"}}), 2);
  const auto j = journey(name);
  EXPECT_EQ(j["drift"]["relative"], 1.0);
  EXPECT_EQ(j["drift"]["largest"], 2.0);
  EXPECT_EQ(j["drift"]["computed_tokens"], 1000 - 384);
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostAudit, ARequestIsNeverBehindAnAudit) {
  start();
  ASSERT_NO_FATAL_FAILURE(fill_pool());
  auto first = ask(1);
  ASSERT_TRUE(turn_until([&] { return first->ended(); }));
  pause(true);
  ASSERT_TRUE(turn_until([&] { return runs().size() == 1; })) << "it starts when nothing is queued";
  EXPECT_EQ(audits()["running"], true);
  EXPECT_EQ(holding(), 1U);
  // The next request's rank is the audit's, or steps with it: the audit is gone before the request comes.
  auto second = ask(1);
  ASSERT_TRUE(turn_until([&] { return audits()["running"] == false; }));
  EXPECT_EQ(audits()["waiting"], 1) << "it will be tried again";
  EXPECT_EQ(audits()["dropped"]["failed"], 0);
  std::uint64_t aborts = 0;
  each(Role::kPrefill, [&](FakeMember& m) { aborts += m.aborts; });
  EXPECT_EQ(aborts, 1U);
  turn_for(std::chrono::milliseconds(300));
  EXPECT_EQ(runs().size(), 1U) << "not while the request is there";
  EXPECT_EQ(holding(), 1U);
  EXPECT_FALSE(second->ended());
  pause(false);
  each(Role::kPrefill, [](FakeMember& m) { m.step(); });
  ASSERT_TRUE(turn_until([&] { return second->ended(); }));
  ASSERT_TRUE(turn_until([&] { return audits()["done"] == 2; })) << backend->status();
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostAudit, ARankThatDiesTakesNoFigureWithIt) {
  start();
  ASSERT_NO_FATAL_FAILURE(fill_pool());
  auto first = ask(1);
  ASSERT_TRUE(turn_until([&] { return first->ended(); }));
  pause(true);
  ASSERT_TRUE(turn_until([&] { return runs().size() == 1; }));
  FakeMember& rank = member(Role::kPrefill, 0, 0);
  rank.die();
  ASSERT_TRUE(turn_until([&] { return audits()["running"] == false; }));
  pause(false);
  rank.connect();
  ASSERT_TRUE(turn_until([&] { return audits()["done"] == 1; })) << backend->status();
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostAudit, BlocksThatAreGoneAndImagesAreDroppedAndCounted) {
  start();
  ASSERT_NO_FATAL_FAILURE(fill_pool());
  each(Role::kPrefill, [](FakeMember& m) { m.true_logits.clear(); });
  auto sink = ask(1);
  ASSERT_TRUE(turn_until([&] { return audits()["dropped"]["failed"] == 1; })) << backend->status();
  auto pictured = std::make_shared<RecordingSink>();
  auto s = submission(prompt(1000), 1);
  s.images = {image(20, 1)};
  backend->submit(s, pictured);  // other keys: a miss
  ASSERT_TRUE(turn_until([&] { return pictured->ended(); }));
  each(Role::kPrefill, [&](FakeMember& m) {
    for (const auto& start : m.started) prefixes->keys.insert(start.keys.begin(), start.keys.end());
  });
  auto again = std::make_shared<RecordingSink>();
  s.name = "msg_images";
  backend->submit(s, again);
  ASSERT_TRUE(turn_until([&] { return again->ended(); }));
  EXPECT_EQ(audits()["dropped"]["images"], 1) << backend->status();
  EXPECT_EQ(audits()["done"], 0);
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostAudit, NothingIsAuditedWhereNothingDrifts) {
  config.window_state.mode = "exact";
  start();
  ASSERT_NO_FATAL_FAILURE(fill_pool());
  auto sink = ask(1);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  turn_for(std::chrono::milliseconds(250));
  EXPECT_EQ(audits(), nullptr);
  each(Role::kPrefill, [](FakeMember& m) {
    for (const auto& start : m.started) EXPECT_EQ(start.window.audit, wire::DriftAudit::kNone);
  });
  EXPECT_EQ(sink->finished->hit_tokens, 384U);
}

}  // namespace
}  // namespace trimtab::agents::testing
