#include <algorithm>
#include <map>

#include "agents/testing/cluster_fixture.h"
#include "base/prng.h"

namespace trimtab::agents::testing {
namespace {

using model::Role;

/// A client that leaves at each stage of a request's life: nothing of it stays anywhere, nothing more is
/// said.
class HostCancel : public ClusterFixture {
 protected:
  std::uint64_t prefill_starts() {
    std::uint64_t sum = 0;
    each(Role::kPrefill, [&](FakeMember& m) { sum += m.prefill_starts; });
    return sum;
  }
  void cancel_and_expect_clean(model::RequestId id, RecordingSink& sink, const std::string& stage) {
    const std::string name = "msg_" + std::to_string(names);
    backend->cancel(id);
    sink.closed = true;
    for (const auto& m : members) m->paused = false;
    EXPECT_TRUE(turn_until([&] { return clean(); })) << stage << ": " << backend->status();
    const auto j = journey(name);
    EXPECT_EQ(j["state"], "cancelled") << stage;
    EXPECT_EQ(j["events"].back()["stage"], stage);
  }
};

TEST_F(HostCancel, BeforeItsFirstStep) {
  start_all();
  auto sink = std::make_shared<RecordingSink>();
  const auto id = backend->submit(submission(prompt(100), 5), sink);
  backend->cancel(id);
  sink->closed = true;
  turn_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(clean());
  each(Role::kPrefill, [](FakeMember& m) { EXPECT_EQ(m.prefill_starts, 0U); });
}

TEST_F(HostCancel, Queued) {
  config.prefill.outstanding_steps = 1;
  start_all();
  each(Role::kPrefill, [](FakeMember& m) { m.paused = true; });
  // Each prompt predicts 81.7 ms, and a rank takes work while it has less than 300 ms outstanding.
  std::vector<std::pair<model::RequestId, std::shared_ptr<RecordingSink>>> filling;
  while (status()["requests"]["queued"] == 0) {
    ASSERT_LT(filling.size(), 64U);
    auto sink = std::make_shared<RecordingSink>();
    filling.emplace_back(backend->submit(submission(prompt(5000), 5), sink), sink);
    turn_for(std::chrono::milliseconds(5));
  }
  const auto queued = filling.back();
  filling.pop_back();
  for (auto& [id, sink] : filling) {
    sink->closed = true;
    backend->cancel(id);
  }
  // The others' cancels may have let it through; what counts is that it leaves nothing.
  backend->cancel(queued.first);
  queued.second->closed = true;
  each(Role::kPrefill, [](FakeMember& m) { m.paused = false; });
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostCancel, WhilePrefilling) {
  start_all();
  each(Role::kPrefill, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  const auto id = backend->submit(submission(prompt(300), 5), sink);
  ASSERT_TRUE(turn_until([&] { return status()["requests"]["prefilling"] == 1; }));
  ASSERT_TRUE(turn_until([&] { return holding() == 2; })) << "a prefill rank and a decode place";
  cancel_and_expect_clean(id, *sink, "prefilling");
  EXPECT_TRUE(prefixes->answers.empty()) << "an answer that ends early says nothing";
}

TEST_F(HostCancel, WhileItsImagesAreAtAnEncoder) {
  start_all();
  each(Role::kVision, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(300), 5);
  s.images = {image(20, 1), image(100, 2)};
  const auto id = backend->submit(s, sink);
  ASSERT_TRUE(turn_until([&] { return status()["encodings_in_flight"] == 2; }));
  ASSERT_TRUE(turn_until([&] {
    std::uint64_t asked = 0;
    each(Role::kVision, [&](FakeMember& m) { asked += m.encodes; });
    return asked == 2 && prefill_starts() == 1;
  }));
  cancel_and_expect_clean(id, *sink, "prefilling");
}

TEST_F(HostCancel, WhenTheEncoderAnswersAfterTheClientLeft) {
  start_all();
  each(Role::kVision, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(300), 5);
  s.images = {image(20, 1)};
  const auto id = backend->submit(s, sink);
  FakeMember* encoder = nullptr;
  ASSERT_TRUE(turn_until([&] {
    each(Role::kVision, [&](FakeMember& m) { encoder = m.encodes > 0 ? &m : encoder; });
    return encoder != nullptr && prefill_starts() == 1;
  }));
  encoder->step();  // the segment is written and the answer on its way when the client leaves
  EXPECT_EQ(segments_left(), 1U);
  cancel_and_expect_clean(id, *sink, "prefilling");
}

TEST_F(HostCancel, WhileDecoding) {
  start_all();
  each(Role::kDecode, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  const auto id = backend->submit(submission(prompt(300), 50), sink);
  ASSERT_TRUE(turn_until([&] { return status()["requests"]["decoding"] == 1; }));
  cancel_and_expect_clean(id, *sink, "decoding");
}

TEST_F(HostCancel, TenThousandAtRandomMomentsLeaveNothing) {
  start_all();
  base::Prng prng(20260801);
  struct Client {
    model::RequestId id;
    std::shared_ptr<RecordingSink> sink;
    std::uint64_t leaves_after = 0;  // turns of the loop
    std::string name;
  };
  std::map<std::string, int> stages;  // of every tenth that left
  std::vector<Client> clients;
  int cancelled = 0, finished = 0;
  constexpr int kCancels = 10'000;
  while (cancelled < kCancels) {
    while (clients.size() < 48) {
      auto s = submission(prompt(64 + prng.below(600), static_cast<std::int32_t>(prng.below(9))),
                          static_cast<std::uint32_t>(1 + prng.below(12)));
      if (prng.below(8) == 0) s.images = {image(8, prng.below(100))};
      auto sink = std::make_shared<RecordingSink>();
      const std::string name = s.name;
      clients.push_back({backend->submit(std::move(s), sink), sink, prng.below(4000), name});
    }
    context.restart();
    context.poll_one();
    for (Client& client : clients) {
      if (client.leaves_after > 0) --client.leaves_after;
      if (client.sink->ended()) ++finished;
      if (client.leaves_after > 0 || client.sink->ended()) continue;
      backend->cancel(client.id);
      client.sink->closed = true;
      if (++cancelled % 10 == 0) ++stages[journey(client.name)["events"].back().value("stage", "none")];
    }
    std::erase_if(clients, [](const Client& c) { return c.sink->closed || c.sink->ended(); });
  }
  for (Client& client : clients) {
    backend->cancel(client.id);
    client.sink->closed = true;
  }
  EXPECT_GT(finished, 1000) << "some must come through, or the last stages were never cancelled";
  for (const char* stage : {"prefilling", "decoding"})
    EXPECT_GT(stages[stage], 20) << stage << " of " << nlohmann::json(stages);
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
  turn_for(std::chrono::milliseconds(250));  // the gauges are sampled
  EXPECT_EQ(registry.value("trimtab_requests_in_flight"), 0);
  EXPECT_EQ(registry.value("trimtab_vision_encodings_in_flight"), 0);
  for (const char* tier : {"0", "1", "2", "3"}) {
    EXPECT_EQ(registry.value("trimtab_prefill_queue_depth", {{"tier", tier}}), 0);
    EXPECT_EQ(registry.value("trimtab_prefill_queue_quota_seconds", {{"tier", tier}}), 0);
  }
  for (const char* role : {"prefill", "decode"}) {
    for (const char* engine : {"0", "1"}) {
      for (const char* rank : {"0", "1"}) {
        const base::Labels labels = {{"role", role}, {"engine", engine}, {"rank", rank}};
        EXPECT_EQ(registry.value("trimtab_rank_requests", labels), 0);
        EXPECT_EQ(registry.value("trimtab_decode_running", labels), 0);
        EXPECT_EQ(registry.value("trimtab_decode_kv_tokens", labels), 0);
      }
    }
  }
  // And the system still works.
  auto sink = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(300), 9), sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  EXPECT_EQ(sink->tokens, expected_answer(prompt(300), 9));
}

}  // namespace
}  // namespace trimtab::agents::testing
