#include <gmock/gmock.h>

#include <sstream>

#include "agents/testing/cluster_fixture.h"
#include "io/explain.h"

namespace trimtab::agents::testing {
namespace {

using model::Role;
using ::testing::HasSubstr;

class HostLife : public ClusterFixture {};

TEST_F(HostLife, ARequestGoesThroughPrefillAndDecodeToItsEnd) {
  start_all();
  auto sink = std::make_shared<RecordingSink>();
  const auto tokens = prompt(300);
  backend->submit(submission(tokens, 7), sink);
  EXPECT_FALSE(sink->accepted) << "a sink must not be called before submit has returned the id";
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  ASSERT_TRUE(sink->finished) << to_string(*sink->failed);
  EXPECT_EQ(sink->tokens, expected_answer(tokens, 7));
  EXPECT_EQ(sink->accepted->prompt_tokens, 300U);
  EXPECT_EQ(sink->finished->reason, model::FinishReason::kLength);
  EXPECT_EQ(sink->finished->prompt_tokens, 300U);
  EXPECT_EQ(sink->finished->computed_tokens, 300U);
  EXPECT_EQ(sink->finished->hit_tokens, 0U);
  EXPECT_EQ(sink->finished->output_tokens, 7U);
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
  EXPECT_EQ(registry.value("trimtab_requests_total", {{"outcome", "length"}}), 1);
  EXPECT_EQ(registry.value("trimtab_output_tokens_total"), 7);
  EXPECT_EQ(registry.value("trimtab_pool_miss_tokens_total"), 300);
  EXPECT_EQ(prefixes->prompt_blocks, 3U) << "two full ones and a partial one";
  EXPECT_EQ(prefixes->answers, (std::vector<std::pair<std::uint64_t, std::uint32_t>>{{1'001, 7}}));
}

// What came in between would be computed although the pool has it.
TEST_F(HostLife, WithItsEnginesItIsReadyWhenThePoolIsThereToo) {
  auto source = std::make_unique<FakePrefixes>();
  FakePrefixes& pool = *source;
  pool.there = false;
  start_backend(std::move(source));
  add_engines();
  ASSERT_TRUE(turn_until([&] { return status()["ready"] == true; }));
  EXPECT_FALSE(backend->ready());
  pool.there = true;
  EXPECT_TRUE(backend->ready());
  pool.there = false;
  EXPECT_TRUE(backend->ready()) << "a pool that dies later is computed around";
}

TEST_F(HostLife, OneTokenNeedsNoDecodeRank) {
  start_all();
  auto sink = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(200), 1), sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  ASSERT_TRUE(sink->finished);
  EXPECT_EQ(sink->tokens, expected_answer(prompt(200), 1));
  each(Role::kDecode, [](FakeMember& m) { EXPECT_EQ(m.decode_starts, 0U); });
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostLife, AStopTokenEndsTheAnswerAndIsReported) {
  start_all();
  for (const std::size_t at : {0UL, 3UL}) {
    auto sink = std::make_shared<RecordingSink>();
    auto s = submission(prompt(150), 20);
    s.stop_tokens = {expected_answer(prompt(150), 20)[at]};
    backend->submit(s, sink);
    ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
    ASSERT_TRUE(sink->finished);
    EXPECT_EQ(sink->finished->reason, model::FinishReason::kStop);
    EXPECT_EQ(sink->tokens, expected_answer(prompt(150), static_cast<std::uint32_t>(at + 1)));
  }
  EXPECT_TRUE(turn_until([&] { return clean(); }));
}

TEST_F(HostLife, HitsComeFromThePoolAndAreCountedOnce) {
  start_all();
  auto first = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(640), 2), first);
  ASSERT_TRUE(turn_until([&] { return first->ended(); }));
  // The engines have stored the prompt's five full blocks: the pool has them now.
  each(Role::kPrefill, [&](FakeMember& m) {
    for (const auto& start : m.started) prefixes->keys.insert(start.keys.begin(), start.keys.end());
  });
  auto second = std::make_shared<RecordingSink>();
  auto longer = prompt(640);
  longer.push_back(5);
  backend->submit(submission(longer, 2), second);
  ASSERT_TRUE(turn_until([&] { return second->ended(); }));
  EXPECT_EQ(second->accepted->hit_tokens, 640U);
  EXPECT_EQ(second->finished->hit_tokens, 640U);
  EXPECT_EQ(second->finished->computed_tokens, 1U);
  EXPECT_EQ(second->tokens, expected_answer(longer, 2));
  EXPECT_EQ(registry.value("trimtab_pool_hit_tokens_total"), 640);
  EXPECT_EQ(registry.value("trimtab_pool_miss_tokens_total"), 640 + 1);
  EXPECT_EQ(prefixes->counted, 2U);
  // Another tenant's salt shares nothing.
  auto salted = std::make_shared<RecordingSink>();
  auto s = submission(longer, 2);
  s.tenant = "other";
  backend->submit(s, salted);
  ASSERT_TRUE(turn_until([&] { return salted->ended(); }));
  EXPECT_EQ(salted->finished->hit_tokens, 0U);
}

// vllm#44250, #44701, sglang#33268: a part of the scope never reached the key that the pool is asked with.
TEST_F(HostLife, WhateverMakesBlocksDifferentReachesTheirKeys) {
  const auto key_with = [&](const std::function<void(ClusterBackendOptions&)>& change,
                            std::uint64_t fingerprint = 77, const std::string& tenant = {}) {
    members.clear();
    backend.reset();
    auto o = options();
    o.log_dir.clear();
    change(o);
    auto started =
        ClusterBackend::start(std::move(o), context, clock, registry, std::make_unique<FakePrefixes>());
    EXPECT_TRUE(started);
    backend = std::move(*started);
    const auto join = [&](Role role, std::uint32_t engines, std::uint32_t ranks) {
      for (std::uint32_t at = 0; at < engines * ranks; ++at) {
        auto h = hello(role, at / ranks, at % ranks);
        h.model_fingerprint = fingerprint;
        add(h);
      }
    };
    join(Role::kPrefill, config.prefill.engines, config.prefill.ranks);
    join(Role::kDecode, config.decode.groups, config.decode.ranks);
    join(Role::kVision, config.vision.machines, config.vision.encoders);
    EXPECT_TRUE(turn_until([&] { return backend->ready(); }));
    auto sink = std::make_shared<RecordingSink>();
    auto s = submission(prompt(150), 1);
    s.tenant = tenant;
    backend->submit(s, sink);
    EXPECT_TRUE(turn_until([&] { return sink->ended(); }));
    model::BlockKey key;
    each(Role::kPrefill, [&](FakeMember& m) {
      for (const auto& start : m.started) key = start.keys.front();
    });
    return key;
  };
  const auto same = [](ClusterBackendOptions&) {};
  const auto window = [](ClusterBackendOptions& o) {
    o.profile.kv.window_tokens = o.profile.kv.ring_slots = 128;
    o.profile.kv.window_layers = 1;
  };
  const std::vector<model::BlockKey> keys = {
      key_with(same),
      key_with(same, 78),
      key_with(same, 77, "salt"),
      key_with([](ClusterBackendOptions& o) { o.tokenizer_fingerprint = "other"; }),
      key_with([](ClusterBackendOptions& o) { o.kv_format = "fp8"; }),
      key_with([](ClusterBackendOptions& o) { o.profile.kv.block_bytes = base::Bytes{1'000}; }),
      key_with([](ClusterBackendOptions& o) { o.profile.kv.layer_bytes = {base::Bytes{500}}; }),
      key_with(window),
      key_with([&](ClusterBackendOptions& o) {
        window(o);
        o.config.window_state.mode = "exact";
      }),
  };
  EXPECT_EQ(std::set(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_EQ(key_with(same), keys[0]) << "and nothing else does, a restart least of all";
}

TEST_F(HostLife, BlocksLostBetweenMatchAndFetchAreComputedAndCountedOnce) {
  start_all();
  const auto ask = [&](std::int32_t last) {
    auto sink = std::make_shared<RecordingSink>();
    auto tokens = prompt(640);
    tokens.push_back(last);
    backend->submit(submission(tokens, 2), sink);
    EXPECT_TRUE(turn_until([&] { return sink->ended(); }));
    EXPECT_EQ(sink->tokens, expected_answer(tokens, 2));
    return sink->finished->computed_tokens;
  };
  const auto count = [&](const char* outcome) {
    return registry.value("trimtab_prefix_cache_requests_total", {{"outcome", outcome}});
  };
  EXPECT_EQ(ask(1), 641U);
  each(Role::kPrefill, [&](FakeMember& m) {
    for (const auto& start : m.started) prefixes->keys.insert(start.keys.begin(), start.keys.end());
    m.fetch_blocks_most = 2;
  });
  EXPECT_EQ(ask(2), 641U - 256U);
  each(Role::kPrefill, [&](FakeMember& m) { m.fetch_end = wire::FetchEnd::kFailed; });
  EXPECT_EQ(ask(3), 641U - 256U);
  each(Role::kPrefill, [&](FakeMember& m) { m.fetch_blocks_most.reset(); });
  each(Role::kPrefill, [&](FakeMember& m) {
    m.swap_step_ns = 40'000'000;
    m.swap_stalled_ns = 10'000'000;
    m.thrown_tokens = 44;
  });
  EXPECT_EQ(ask(4), 1U);
  each(Role::kPrefill, [&](FakeMember& m) { m.swap_step_ns = m.swap_stalled_ns = m.thrown_tokens = 0; });
  auto tiny = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(100), 1), tiny);
  ASSERT_TRUE(turn_until([&] { return tiny->ended(); }));
  each(Role::kPrefill, [&](FakeMember& m) { m.paused = true; });
  auto leaves = std::make_shared<RecordingSink>();
  const auto left = backend->submit(submission(prompt(640), 1), leaves);
  ASSERT_TRUE(
      turn_until([&] { return nlohmann::json::parse(backend->status())["requests"]["prefilling"] == 1; }));
  backend->cancel(left);
  for (const char* outcome : {"miss", "stale", "fallback", "hit", "skipped", "abandoned"})
    EXPECT_EQ(count(outcome), 1) << outcome;
  EXPECT_EQ(registry.value("trimtab_prefix_cache_queries_total"), 4 * 641 + 100);
  EXPECT_EQ(registry.value("trimtab_prefix_cache_hits_total"), 256 + 256 + 640);
  const auto hits = nlohmann::json::parse(backend->status())["hits"];
  EXPECT_EQ(hits["promised_tokens"], 3 * 640);
  EXPECT_EQ(hits["hit_tokens"], 256 + 256 + 640);
  const auto swap = nlohmann::json::parse(backend->status())["swap_in"];
  EXPECT_EQ(swap["requests"], 1);
  EXPECT_EQ(swap["overlap"], 0.75);
  EXPECT_EQ(swap["thrown_tokens"], 44);
  EXPECT_EQ(registry.value("trimtab_swap_in_requests_total"), 1);
  EXPECT_EQ(registry.value("trimtab_swap_in_thrown_tokens_total"), 44);
  EXPECT_EQ(registry.value("trimtab_swap_in_stalled_seconds_total"), 0.01);
  EXPECT_EQ(registry.value("trimtab_swap_in_step_seconds_total"), 0.04);
}

TEST_F(HostLife, ImagesAreEncodedAndTheirSegmentsLeaveNothingBehind) {
  start_all();
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(400), 3);
  s.images = {image(20, 1), image(200, 2)};
  const std::string name = s.name;
  backend->submit(s, sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  ASSERT_TRUE(sink->finished) << to_string(*sink->failed);
  EXPECT_EQ(sink->tokens, expected_answer(prompt(400), 3));
  std::uint64_t encodes = 0;
  each(Role::kVision, [&](FakeMember& m) { encodes += m.encodes; });
  EXPECT_EQ(encodes, 2U);
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
  const auto j = journey(name);
  ASSERT_EQ(j["images"].size(), 2U);
  EXPECT_EQ(j["images"][0]["rows"], 16);
  EXPECT_EQ(j["images"][0]["token_ids"], std::vector<int>(16, 7));
}

TEST_F(HostLife, TheJourneyHasEveryFieldAndTheChecksumOfEveryToken) {
  start_all();
  each(Role::kPrefill, [](FakeMember& m) { m.chunk_tokens = 1000; });
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(2500), 4);
  s.images = {image(100, 9)};
  const std::string name = s.name;
  const model::RequestId id = backend->submit(s, sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  const auto j = journey(name);
  EXPECT_EQ(j["id"], id.value);
  EXPECT_EQ(j["state"], "finished");
  EXPECT_EQ(j["tokens"], expected_answer(prompt(2500), 4));
  auto context_tokens = prompt(2500);
  for (std::size_t i = 0; i < 4; ++i) {
    char text[17];
    std::snprintf(text, sizeof text, "%016lx", logits_of(context_tokens));
    EXPECT_EQ(j["checksums"][i], text);
    context_tokens.push_back(sink->tokens[i]);
  }
  const auto& summary = j["summary"];
  EXPECT_EQ(summary["prompt_tokens"], 2500);
  EXPECT_EQ(summary["computed_tokens"], 2500);
  EXPECT_EQ(summary["tier"], 2) << "2,500 tokens lie in 2,048 to 4,096";
  EXPECT_GT(summary["ttft_ms"], 0.0);
  EXPECT_GT(summary["quota_predicted_ms"], 25.0) << "10 us a token and the attention";
  EXPECT_GT(summary["quota_spent_ms"], 0.0);
  std::map<std::string, nlohmann::json> by_kind;
  std::map<std::string, int> count;
  for (const auto& event : j["events"]) {
    by_kind[event["kind"]] = event;
    ++count[event["kind"]];
  }
  EXPECT_EQ(count["chunk"], 3);
  EXPECT_EQ(by_kind["chunk"]["budget_min_ms"], 290.0);
  EXPECT_EQ(by_kind["chunk"]["vote_ms"], 300.0);
  EXPECT_EQ(by_kind["vision"]["patches"], 16);
  EXPECT_EQ(by_kind["vision"]["patches_in_flight"].size(), 2U);
  EXPECT_EQ(by_kind["lease"]["rank_quota_left_ms"].size(), 2U);
  EXPECT_EQ(by_kind["lease"]["engine_quota_left_ms"], 2 * 2 * 300.0);
  EXPECT_GE(by_kind["decode"]["candidates"], 1);
  EXPECT_TRUE(by_kind["decode"]["winner"].contains("kv_tokens"));
  EXPECT_TRUE(by_kind["decode"]["winner"].contains("running"));
  EXPECT_TRUE(by_kind["decode"]["runner_up"].is_object());
  for (const char* kind : {"submitted", "admission", "match", "queue", "encoded", "reserved", "prefill_done",
                           "decode_start", "finished"})
    EXPECT_EQ(count[kind], 1) << kind;

  // The log on disk tells the same to `trimtab explain`, by name and by number.
  turn_for(std::chrono::milliseconds(250));
  std::ostringstream text, errors;
  EXPECT_EQ(io::explain_command(folder + "/log", name, false, text, errors), 0) << errors.str();
  for (const char* words :
       {"2500 prompt tokens", "queued in tier 2", "pulled by prefill engine", "of quota left",
        "group MIN 290 ms", "16 patches", "runner-up", "running", "KV tokens", "under the waterline",
        "quota predicted", "spent", "first token after", "4 tokens"})
    EXPECT_THAT(text.str(), HasSubstr(words));
  std::ostringstream json_text;
  EXPECT_EQ(io::explain_command(folder + "/log", std::to_string(id.value), true, json_text, errors), 0);
  EXPECT_EQ(nlohmann::json::parse(json_text.str()), j);
  EXPECT_EQ(io::explain_command(folder + "/log", "msg_unknown", false, text, errors), 1);
  EXPECT_THAT(errors.str(), HasSubstr("msg_unknown"));
}

TEST_F(HostLife, JourneysSurviveARestartAndIdsAreNotUsedTwice) {
  start_all();
  auto sink = std::make_shared<RecordingSink>();
  auto s = submission(prompt(100), 3);
  const model::RequestId before = backend->submit(s, sink);
  ASSERT_TRUE(turn_until([&] { return sink->ended(); }));
  const auto told = journey(s.name);
  members.clear();
  backend.reset();
  start_all();
  EXPECT_EQ(journey(s.name), told);
  const model::RequestId after =
      backend->submit(submission(prompt(100), 3), std::make_shared<RecordingSink>());
  EXPECT_GT(after, before);
}

TEST_F(HostLife, StatusTellsWhoIsThereAndWhatTheyDo) {
  start_all();
  each(Role::kDecode, [](FakeMember& m) { m.paused = true; });
  auto sink = std::make_shared<RecordingSink>();
  const auto id = backend->submit(submission(prompt(300), 9), sink);
  ASSERT_TRUE(turn_until([&] { return sink->tokens.size() == 1; }));
  turn_for(std::chrono::milliseconds(150));
  const auto s = status();
  EXPECT_EQ(s["ready"], true);
  EXPECT_EQ(s["requests"]["in_flight"], 1);
  EXPECT_EQ(s["requests"]["decoding"], 1);
  EXPECT_EQ(s["requests"]["oldest"][0]["id"], id.value);
  EXPECT_EQ(s["tiers"].size(), 4U);
  EXPECT_EQ(s["engines"].size(), 6U);
  EXPECT_EQ(s["alarms"].size(), 0U) << s["alarms"];
  int running = 0;
  std::int64_t kv_tokens = 0;
  for (const auto& engine : s["engines"]) {
    for (const auto& rank : engine["ranks"]) {
      EXPECT_EQ(rank["connected"], true);
      running += rank.value("running", 0);
      kv_tokens += rank.value("kv_tokens", 0);
    }
  }
  EXPECT_EQ(running, 1);
  EXPECT_GE(kv_tokens, 300);
  EXPECT_EQ(registry.value("trimtab_requests_in_flight"), 1);
  backend->cancel(id);
  sink->closed = true;
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
}

TEST_F(HostLife, ASinkMayCancelItsOwnRequestAndSubmitAnother) {
  start_all();
  auto sink = std::make_shared<RecordingSink>();
  auto next = std::make_shared<RecordingSink>();
  model::RequestId id;
  sink->after_token = [&] {
    if (sink->tokens.size() != 3) return;
    backend->cancel(id);
    sink->closed = true;
    backend->submit(submission(prompt(50, 2), 2), next);
  };
  id = backend->submit(submission(prompt(50), 1000), sink);
  ASSERT_TRUE(turn_until([&] { return next->ended(); }));
  EXPECT_EQ(sink->tokens.size(), 3U);
  EXPECT_EQ(next->tokens, expected_answer(prompt(50, 2), 2));
  EXPECT_TRUE(turn_until([&] { return clean(); })) << backend->status();
  EXPECT_EQ(journey("msg_1")["state"], "cancelled");
}

TEST_F(HostLife, ShutdownEndsRequestsAndEngines) {
  start_all();
  each(Role::kDecode, [](FakeMember& m) { m.paused = true; });
  for (const auto& m : members) m->rejoins = false;
  auto sink = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(300), 9), sink);
  ASSERT_TRUE(turn_until([&] { return sink->tokens.size() == 1; }));
  backend->shutdown();
  ASSERT_TRUE(sink->failed);
  EXPECT_EQ(sink->failed->code, base::Code::kUnavailable);
  EXPECT_TRUE(turn_until([&] {
    return std::all_of(members.begin(), members.end(), [](const auto& m) { return m->shutdowns == 1; });
  }));
  auto late = std::make_shared<RecordingSink>();
  backend->submit(submission(prompt(10), 1), late);
  ASSERT_TRUE(turn_until([&] { return late->ended(); }));
  EXPECT_EQ(late->failed->code, base::Code::kUnavailable);
}

}  // namespace
}  // namespace trimtab::agents::testing
