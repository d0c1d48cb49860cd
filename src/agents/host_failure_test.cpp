#include <gmock/gmock.h>

#include <algorithm>

#include "agents/testing/cluster_fixture.h"
#include "ipc/channel.h"

namespace trimtab::agents::testing {
namespace {

using model::Role;
using ::testing::HasSubstr;

class HostFailure : public ClusterFixture {
 protected:
  FakeMember* holder(Role role) {
    FakeMember* found = nullptr;
    each(role, [&](FakeMember& m) { found = m.holding() > 0 ? &m : found; });
    return found;
  }
};

TEST_F(HostFailure, APrefillRankKilledMidStepHasItsRequestsRedoneElsewhere) {
  start_all();
  each(Role::kPrefill, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(700), 6);
  backend->submit(s, sink);
  ASSERT_TRUE(turn_until([&] { return holder(Role::kPrefill) != nullptr; }));
  FakeMember* dead = holder(Role::kPrefill);
  dead->die();
  each(Role::kPrefill, [](FakeMember& m) { m.paused = false; });
  ASSERT_TRUE(turn_until([&] { return sink->ended(); })) << backend->status();
  ASSERT_TRUE(sink->finished) << to_string(*sink->failed);
  EXPECT_EQ(sink->tokens, expected_answer(prompt(700), 6));
  EXPECT_EQ(journey(s.name)["summary"]["redos"], 1);
  EXPECT_EQ(registry.value("trimtab_requests_redone_total", {{"from", "prefill"}}), 1);
  EXPECT_FALSE(backend->ready());
  // Its peer was told to shut down; once both are back the engine serves again.
  EXPECT_EQ(member(Role::kPrefill, dead->hello().engine, 1 - dead->hello().rank).shutdowns, 1U);
  dead->connect();
  EXPECT_TRUE(turn_until([&] { return backend->ready(); })) << backend->status();
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostFailure, ADecodeRankKilledMidStreamContinuesWithoutALostOrDoubledToken) {
  start_all();
  each(Role::kDecode, [](FakeMember& m) { m.paused = true; });
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    backend->submit(submission(prompt(200 + 40 * static_cast<std::size_t>(i), i), 40), sinks.back());
  }
  ASSERT_TRUE(turn_until([&] { return status()["requests"]["decoding"] == 12; }));
  for (int step = 0; step < 5; ++step) {
    each(Role::kDecode, [](FakeMember& m) { m.step(); });
    turn_for(std::chrono::milliseconds(5));
  }
  FakeMember& dead = member(Role::kDecode, 1, 0);
  ASSERT_GT(dead.holding(), 0U);
  dead.step();  // in the socket when it dies, or not: either way no token may be lost or come twice
  dead.die();
  each(Role::kDecode, [](FakeMember& m) { m.paused = false; });
  each(Role::kDecode, [](FakeMember& m) { m.step(); });
  ASSERT_TRUE(turn_until([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->ended(); });
  })) << backend->status();
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(sinks[i]->finished) << to_string(*sinks[i]->failed);
    EXPECT_EQ(sinks[i]->tokens, expected_answer(prompt(200 + 40 * static_cast<std::size_t>(i), i), 40));
    EXPECT_EQ(sinks[i]->finished->output_tokens, 40U);
  }
  EXPECT_GT(registry.value("trimtab_requests_redone_total", {{"from", "decode"}}), 0);
  dead.connect();
  EXPECT_TRUE(turn_until([&] { return backend->ready(); })) << backend->status();
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostFailure, EverythingKilledAtOnceIsRedoneWhenItComesBack) {
  start_all();
  for (const auto& m : members) m->paused = true;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    auto s = submission(prompt(600, i), 8);
    if (i % 2 == 0) s.images = {image(10, static_cast<std::uint64_t>(i))};
    backend->submit(s, sinks.back());
  }
  ASSERT_TRUE(turn_until([&] { return status()["requests"]["prefilling"] == 8; }));
  for (const auto& m : members) m->die();
  ASSERT_TRUE(turn_until([&] { return status()["requests"]["queued"] == 8; })) << backend->status();
  for (const auto& m : members) m->paused = false;
  for (const auto& m : members) m->connect();
  ASSERT_TRUE(turn_until([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->ended(); });
  })) << backend->status();
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(sinks[i]->finished) << to_string(*sinks[i]->failed);
    EXPECT_EQ(sinks[i]->tokens, expected_answer(prompt(600, i), 8));
  }
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostFailure, ARankThatKeepsDyingEndsTheRequestWithAClearError) {
  config.prefill.engines = 1;
  start_all();
  each(Role::kPrefill, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(700), 6), sink);
  for (int deaths = 0; deaths < 20 && !sink->ended(); ++deaths) {
    ASSERT_TRUE(turn_until([&] { return sink->ended() || holder(Role::kPrefill) != nullptr; }));
    if (sink->ended()) break;
    FakeMember* dead = holder(Role::kPrefill);
    dead->die();
    ASSERT_TRUE(turn_until([&] { return !backend->ready(); }));
    dead->connect();
    ASSERT_TRUE(turn_until([&] { return backend->ready(); }));
  }
  ASSERT_TRUE(sink->failed);
  EXPECT_EQ(sink->failed->code, base::Code::kUnavailable);
  EXPECT_THAT(sink->failed->message, HasSubstr("prefill engine 0"));
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostFailure, ASuccessorThatIsFasterThanTheNewsOfADeathIsNoDisturbance) {
  start_all();
  // Both ranks of the group start anew while the old connections are still open at our end.
  std::vector<std::unique_ptr<FakeMember>> successors;
  for (const std::uint32_t rank : {1U, 0U}) {
    FakeMember& old = member(Role::kPrefill, 0, rank);
    old.rejoins = false;
    successors.push_back(std::make_unique<FakeMember>(context, folder + "/control.sock", old.hello()));
    successors.back()->connect();
  }
  turn_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(backend->ready()) << backend->status();
  for (const auto& successor : successors) {
    EXPECT_TRUE(successor->connected());
    EXPECT_EQ(successor->shutdowns, 0U) << "it belongs to the new formation";
  }
}

TEST_F(HostFailure, AnEncoderThatFailsIsTriedElsewhereAndThenTheRequestFails) {
  start_all();
  each(Role::kVision, [](FakeMember& m) { m.fails_images = true; });
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(300), 5);
  s.images = {image(20, 1)};
  backend->submit(s, sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  ASSERT_TRUE(sink->failed);
  EXPECT_THAT(sink->failed->message, HasSubstr("out of order"));
  std::uint64_t tries = 0;
  each(Role::kVision, [&](FakeMember& m) { tries += m.encodes; });
  EXPECT_GE(tries, 2U);
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostFailure, AnEncoderThatDiesHandsItsImageToAnother) {
  start_all();
  each(Role::kVision, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(300), 5);
  s.images = {image(20, 1)};
  backend->submit(s, sink);
  ASSERT_TRUE(turn_until([&] { return holder(Role::kVision) != nullptr; }));
  holder(Role::kVision)->die();
  each(Role::kVision, [](FakeMember& m) { m.paused = false; });
  ASSERT_TRUE(turn_until([&] { return sink->ended(); })) << backend->status();
  EXPECT_EQ(sink->tokens, expected_answer(prompt(300), 5));
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostFailure, AHungPoolIsAMissAndIsCounted) {
  // Connections come through, answers do not.
  auto deaf = ipc::Listener::bind(folder + "/kv.sock");
  ASSERT_TRUE(deaf);
  using base::operator""_ms;
  start_backend(std::make_unique<PoolPrefixSource>(folder + "/kv.sock", clock, 50_ms));
  add_engines();
  ASSERT_TRUE(turn_until([&] { return backend->ready(); }));
  const auto dials = [&] {
    int count = 0;
    for (auto fd = deaf->accept(base::Nanos{0}); fd && *fd; fd = deaf->accept(base::Nanos{0}))
      ++count, ::close(**fd);
    return count;
  };
  EXPECT_GE(dials(), 1);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 20; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    backend->submit(submission(prompt(300, i), 3), sinks.back());
  }
  ASSERT_TRUE(turn_until(
      [&] { return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->ended(); }); }));
  const auto took = std::chrono::steady_clock::now() - begin;
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->finished);
    EXPECT_EQ(sink->finished->hit_tokens, 0U);
    EXPECT_EQ(sink->finished->computed_tokens, 300U);
  }
  EXPECT_EQ(registry.value("trimtab_pool_match_failures_total"), 20);
  // A dial waits for 50 ms, and the next one comes ten times that later.
  EXPECT_LE(dials(), 1 + took / std::chrono::milliseconds(500)) << "one wait, not twenty";
  EXPECT_THAT(status()["alarms"].dump(), HasSubstr("KV pool does not answer"));
}

TEST_F(HostFailure, AFullDecodeRankRefusesAndAnotherTakesTheRequest) {
  start_all();
  member(Role::kDecode, 0, 0).refuses = true;
  member(Role::kDecode, 0, 1).refuses = true;
  member(Role::kDecode, 1, 0).refuses = true;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    backend->submit(submission(prompt(300, i), 5), sinks.back());
  }
  ASSERT_TRUE(turn_until([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->ended(); });
  })) << backend->status();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(sinks[i]->tokens, expected_answer(prompt(300, i), 5));
  EXPECT_EQ(member(Role::kDecode, 1, 1).decode_starts, 6U);
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostFailure, HellosThatDoNotFitAreRefusedWithTheReason) {
  start_all();
  const auto refused = [&](wire::Hello h, const std::string& words) {
    warnings.clear();
    FakeMember stranger(context, folder + "/control.sock", h);
    stranger.connect();
    EXPECT_TRUE(turn_until([&] { return !stranger.connected(); }));
    ASSERT_FALSE(warnings.empty());
    EXPECT_THAT(warnings.back(), HasSubstr(words));
  };
  refused(hello(Role::kPrefill, 7, 0), "engine 7 rank 0 is not in the configuration (fake.toml)");
  refused(hello(Role::kDecode, 0, 2), "decode engine 0 rank 2 is not in the configuration");
  refused(hello(static_cast<Role>(9), 0, 0), "not in the configuration");
  auto other = hello(Role::kDecode, 0, 0);
  other.model_fingerprint = 78;
  refused(other, "runs model 000000000000004e, the others 000000000000004d");
  auto empty = hello(Role::kDecode, 0, 0);
  empty.blocks_total = 0;
  refused(empty, "0 KV blocks");
  EXPECT_TRUE(backend->ready()) << "those that are there stay";
}

TEST_F(HostFailure, APeerThatBreaksTheProtocolIsCutOffAndTheOthersGoOn) {
  start_all();
  FakeMember& broken = member(Role::kPrefill, 0, 0);
  broken.send_raw({static_cast<std::uint16_t>(wire::Type::kDecodeStep), {}});
  EXPECT_TRUE(turn_until([&] { return !broken.connected(); }));
  FakeMember& garbled = member(Role::kVision, 0, 0);
  garbled.send_raw({static_cast<std::uint16_t>(wire::Type::kEncoded), std::vector<std::byte>(3)});
  EXPECT_TRUE(turn_until([&] { return !garbled.connected(); }));
  auto sink = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(300), 4), sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  EXPECT_EQ(sink->tokens, expected_answer(prompt(300), 4));
}

TEST_F(HostFailure, BeforeAnyEngineIsThereARequestIsToldToComeBack) {
  ASSERT_NO_FATAL_FAILURE(start_backend());
  auto sink = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(300), 4), sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  EXPECT_EQ(sink->failed->code, base::Code::kUnavailable);
  EXPECT_TRUE(sink->retry_after.has_value());
}

TEST_F(HostFailure, ARuntimeFolderWithTooLongANameIsRefusedClearly) {
  auto o = options();
  o.runtime_dir = folder + "/" + std::string(120, 'x');
  const auto started = ClusterBackend::start(o, context, clock, registry, std::make_unique<FakePrefixes>());
  ASSERT_FALSE(started);
  EXPECT_THAT(started.error().message, HasSubstr("shorter runtime directory"));
}

// Sixty-four at once: every rank of both roles gets its share.
TEST_F(HostFailure, SixtyFourAtOnceSpreadEvenly) {
  start_all();
  for (const auto& m : members) m->paused = true;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 64; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    backend->submit(submission(prompt(256, i), 10), sinks.back());
  }
  ASSERT_TRUE(turn_until([&] { return status()["requests"]["prefilling"] == 64; })) << backend->status();
  turn_for(std::chrono::milliseconds(20));
  each(Role::kPrefill, [](FakeMember& m) { EXPECT_EQ(m.prefill_starts, 16U); });
  each(Role::kDecode, [](FakeMember& m) { EXPECT_EQ(m.holding(), 16U); });
  for (const auto& m : members) {
    m->paused = false;
    m->step();
  }
  ASSERT_TRUE(turn_until([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& s) { return s->ended(); });
  })) << backend->status();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(sinks[i]->tokens, expected_answer(prompt(256, i), 10));
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

}  // namespace
}  // namespace trimtab::agents::testing
