#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "base/hash.h"
#include "base/prng.h"
#include "engine/local_model.h"
#include "engine/rank_harness.h"
#include "engine/sampler.h"
#include "engine/tiny_gguf.h"
#include "kv_pool/pool_client.h"

namespace trimtab::engine {
namespace {

using model::RequestId;
using testing::Each;
using testing::ElementsAre;

class RankTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/ranks-" + std::to_string(getpid()) + ".gguf";
    ASSERT_TRUE(TinyGguf().write(path_));
    auto opened = LocalModel::open(path_, 8, 24);
    ASSERT_TRUE(opened) << base::to_string(opened.error());
    model_ = std::move(*opened);
    setup_.model_path = path_;
    setup_.block_bytes = model_->shape().kv_block_bytes();
    setup_.block_layers = static_cast<std::uint32_t>(model_->shape().layers);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// The same request in one process, every prompt computed anew and whole: no hit, no cut, no ranks.
  RankHarness::Answer reference(const RankHarness::Ask& ask) {
    RankHarness::Answer answer;
    std::vector<std::int32_t> all = ask.tokens;
    while (answer.tokens.size() < ask.output_limit) {
      auto row = model_->run(all, 10'000);
      if (!row) return answer;
      answer.checksums.push_back(base::checksum_of(std::span<const float>(*row)));
      answer.tokens.push_back(sample(*row, ask.sampling, all.size()));
      all.push_back(answer.tokens.back());
    }
    return answer;
  }
  /// All blocks of the rank are free again.
  static void expect_nothing_left(RankHarness& harness, RankHarness::Place place) {
    harness.send(place, wire::Abort{RequestId{999'999}});
    auto released = harness.wait_for<wire::Released>(place, RequestId{999'999});
    ASSERT_TRUE(released);
    EXPECT_EQ(released->blocks_free, harness.hello(place).blocks_total);
  }

  std::string path_;
  std::unique_ptr<LocalModel> model_;
  RankHarness::Setup setup_;
};

TEST_F(RankTest, EveryRankCountGivesTheBitsOfOneProcess) {
  RankHarness::Ask ask;
  ask.tokens = TinyGguf::tokens(300, 3);
  ask.output_limit = 6;
  const auto expected = reference(ask);
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U}) {
    setup_.prefill_ranks = ranks;
    setup_.decode_ranks = 5 - ranks;
    setup_.cost = {0, 1'000'000'000, 0};  // 1 ms a token and 200 ms a step: chunks of 200
    setup_.step_budget_ms = 200;
    RankHarness harness(setup_);
    ASSERT_TRUE(harness.start());
    ask.prefill_rank = ranks - 1;
    const auto answer = harness.run(RequestId{1}, ask);
    EXPECT_EQ(answer.failure, "");
    EXPECT_EQ(answer.tokens, expected.tokens) << ranks << " ranks";
    EXPECT_EQ(answer.checksums, expected.checksums) << ranks << " ranks";
    EXPECT_EQ(answer.finish, model::FinishReason::kLength);
    EXPECT_EQ(answer.prefill.computed_tokens, 300U);
    EXPECT_EQ(answer.prefill.handed_blocks, 3U);
    EXPECT_GE(harness.all<wire::PrefillStep>(RankHarness::prefill(ranks - 1)).size(), 2U) << "not chunked";
    EXPECT_THAT(harness.stop(), Each(0));
  }
}

TEST_F(RankTest, SeveralRequestsOnSeveralRanksAtOnce) {
  setup_.prefill_ranks = setup_.decode_ranks = 2;
  setup_.cost = {0, 1'000'000'000, 0};
  setup_.step_budget_ms = 150;
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  std::vector<RankHarness::Ask> asks(6);
  for (std::uint32_t i = 0; i < asks.size(); ++i) {
    asks[i].tokens = TinyGguf::tokens(40 + 90 * i, 100 + i);
    asks[i].output_limit = 10 + i;
    asks[i].prefill_rank = i % 2;
    asks[i].decode_rank = i / 3;
    asks[i].sampling = i % 2 == 0 ? model::Sampling{} : model::Sampling{0.8F, 0.9F, 42 + i};
    harness.start_prefill(RequestId{i + 1}, asks[i]);
  }
  for (std::uint32_t i = 0; i < asks.size(); ++i) ASSERT_TRUE(harness.reserve(RequestId{i + 1}, asks[i]));
  std::vector<wire::PrefillDone> done;
  for (std::uint32_t i = 0; i < asks.size(); ++i) {
    auto message = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(i % 2), RequestId{i + 1});
    ASSERT_TRUE(message) << i;
    done.push_back(*message);
    harness.start_decode(RequestId{i + 1}, asks[i], message->first_token);
  }
  for (std::uint32_t i = 0; i < asks.size(); ++i) {
    const auto answer = harness.follow(RequestId{i + 1}, asks[i]);
    const auto expected = reference(asks[i]);
    EXPECT_EQ(answer.failure, "");
    EXPECT_EQ(done[i].first_token, expected.tokens[0]);
    EXPECT_EQ(answer.tokens, std::vector(expected.tokens.begin() + 1, expected.tokens.end())) << i;
    EXPECT_EQ(answer.checksums, std::vector(expected.checksums.begin() + 1, expected.checksums.end())) << i;
  }
  for (std::uint32_t r = 0; r < 2; ++r) {
    expect_nothing_left(harness, RankHarness::prefill(r));
    expect_nothing_left(harness, RankHarness::decode(r));
  }
  EXPECT_THAT(harness.stop(), Each(0));
}

TEST_F(RankTest, HitsGiveTheSameBitsAlsoAfterARestart) {
  const std::string pool = testing::TempDir() + "/pool-" + std::to_string(getpid());
  setup_.pool_directory = pool;
  RankHarness::Ask first;
  first.tokens = TinyGguf::tokens(200, 21);
  first.output_limit = 70;  // decode fills block 1 (tokens 128..255)
  RankHarness::Ask second;
  {
    RankHarness harness(setup_);
    ASSERT_TRUE(harness.start());
    const auto answer = harness.run(RequestId{1}, first);
    ASSERT_EQ(answer.failure, "");
    second.tokens = first.tokens;
    second.tokens.insert(second.tokens.end(), answer.tokens.begin(), answer.tokens.end());
    const auto more = TinyGguf::tokens(50, 22);
    second.tokens.insert(second.tokens.end(), more.begin(), more.end());
    auto client = kv_pool::PoolClient::connect(harness.kv_socket(), base::Nanos{60'000'000'000});
    ASSERT_TRUE(client);
    for (int tries = 0; tries < 6'000 && client->match(harness.keys(second))->blocks < 2; ++tries)
      usleep(10'000);
    EXPECT_EQ(client->match(harness.keys(second))->blocks, 2U) << "one block made by prefill, one by decode";
    ASSERT_TRUE(client->flush());
    EXPECT_THAT(harness.stop(), Each(0));
  }
  second.hit_blocks = 2;
  setup_.prefill_ranks = 2;
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  const auto expected = reference(second);
  const auto answer = harness.run(RequestId{2}, second);
  EXPECT_EQ(answer.failure, "");
  EXPECT_EQ(answer.prefill.hit_tokens, 256U);
  EXPECT_EQ(answer.prefill.computed_tokens, second.tokens.size() - 256);
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.checksums, expected.checksums);
  // A hit that the pool no longer has is computed.
  RankHarness::Ask gone;
  gone.tokens = TinyGguf::tokens(300, 77);
  gone.hit_blocks = 2;
  const auto computed = harness.run(RequestId{3}, gone);
  EXPECT_EQ(computed.prefill.hit_tokens, 0U);
  EXPECT_EQ(computed.prefill.computed_tokens, 300U);
  EXPECT_EQ(computed.checksums, reference(gone).checksums);
  EXPECT_THAT(harness.stop(), Each(0));
  std::filesystem::remove_all(pool);
}

// pegaflow PR#450: keys of one length taken for blocks of another, so that sessions with one beginning got
// each other's KV.
TEST_F(RankTest, TwoSessionsWithOneBeginningGetTheirOwnBlocks) {
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  auto client = kv_pool::PoolClient::connect(harness.kv_socket(), base::Nanos{60'000'000'000});
  ASSERT_TRUE(client);
  std::vector<RankHarness::Ask> sessions(2);
  for (std::uint64_t i = 0; i < 2; ++i) {  // one block in common and the beginning of another
    sessions[i].tokens = TinyGguf::tokens(150, 81);
    const auto own = TinyGguf::tokens(250, 82 + i);
    sessions[i].tokens.insert(sessions[i].tokens.end(), own.begin(), own.end());
    EXPECT_EQ(harness.run(RequestId{i + 1}, sessions[i]).failure, "");
    for (int tries = 0; tries < 6'000 && client->match(harness.keys(sessions[i]))->blocks < 3; ++tries)
      usleep(10'000);
  }
  EXPECT_EQ(client->stats()->memory_entries, 5U) << "one shared, two of each";
  for (std::uint64_t i = 0; i < 2; ++i) {
    sessions[i].hit_blocks = 3;
    const auto answer = harness.run(RequestId{i + 3}, sessions[i]);
    EXPECT_EQ(answer.prefill.hit_tokens, 384U);
    EXPECT_EQ(answer.checksums, reference(sessions[i]).checksums) << i;
  }
  EXPECT_THAT(harness.stop(), Each(0));
}

// An answer of which the last token that was computed fills a block leaves that block in the pool, right; one
// token less leaves none. The token drawn last has no KV.
TEST_F(RankTest, ABlockThatIsFilledByTheLastStepIsStored) {
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  auto client = kv_pool::PoolClient::connect(harness.kv_socket(), base::Nanos{60'000'000'000});
  ASSERT_TRUE(client);
  RankHarness::Ask ask, next;
  ask.tokens = TinyGguf::tokens(200, 61);
  const auto blocks_after = [&](std::uint64_t id, std::uint32_t output, std::uint32_t expected) {
    ask.output_limit = output;
    const auto answer = harness.run(RequestId{id}, ask);
    EXPECT_EQ(answer.failure, "");
    EXPECT_EQ(answer.finish, model::FinishReason::kLength);
    next.tokens = ask.tokens;
    next.tokens.insert(next.tokens.end(), answer.tokens.begin(), answer.tokens.end());
    next.tokens.resize(280, 1);
    // What an ended request still stores comes before what a later one does.
    RankHarness::Ask other;
    other.tokens = TinyGguf::tokens(150, 70 + id);
    other.output_limit = 110;
    const auto later = harness.run(RequestId{id + 10}, other);
    other.tokens.insert(other.tokens.end(), later.tokens.begin(), later.tokens.end());
    for (int tries = 0; tries < 6'000 && client->match(harness.keys(other))->blocks < 2; ++tries)
      usleep(10'000);
    for (int tries = 0; tries < 6'000 && client->match(harness.keys(next))->blocks < expected; ++tries)
      usleep(10'000);
    return client->match(harness.keys(next))->blocks;
  };
  EXPECT_EQ(blocks_after(1, 56, 1), 1U) << "255 tokens have KV";
  EXPECT_EQ(blocks_after(2, 57, 2), 2U) << "256 tokens have KV";
  next.hit_blocks = 2;
  const auto expected = reference(next);
  const auto answer = harness.run(RequestId{3}, next);
  EXPECT_EQ(answer.prefill.hit_tokens, 256U);
  EXPECT_EQ(answer.checksums, expected.checksums);
  expect_nothing_left(harness, RankHarness::decode(0));
  EXPECT_THAT(harness.stop(), Each(0));
}

TEST_F(RankTest, ARequestThatYieldsGoesOnWithTheSameTokens) {
  setup_.decode_blocks = 4;
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask old, young;
  old.tokens = TinyGguf::tokens(250, 31);
  young.tokens = TinyGguf::tokens(140, 32);  // two blocks each; the elder's 257th token needs a fifth
  old.output_limit = young.output_limit = 150;
  old.headroom_tokens = young.headroom_tokens = 1;
  for (const auto& [id, ask] : {std::pair{RequestId{1}, old}, {RequestId{2}, young}}) {
    harness.start_prefill(id, ask);
    ASSERT_TRUE(harness.reserve(id, ask));
  }
  std::int32_t first[2] = {};
  for (std::uint32_t i = 0; i < 2; ++i) {
    auto done = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(0), RequestId{i + 1});
    ASSERT_TRUE(done);
    first[i] = done->first_token;
  }
  harness.start_decode(RequestId{2}, young, first[1]);  // far from its next block when the elder needs one
  harness.start_decode(RequestId{1}, old, first[0]);
  auto preempted = harness.wait_for<wire::Preempted>(RankHarness::decode(0), RequestId{2});
  ASSERT_TRUE(preempted) << "the one admitted last has to yield";
  EXPECT_NE(preempted->reason.find("request 1"), std::string::npos);
  const auto elder = harness.follow(RequestId{1}, old);
  EXPECT_EQ(elder.failure, "");
  EXPECT_EQ(elder.tokens.size(), 149U);
  std::vector<std::int32_t> drawn = {first[1]};
  for (const auto& step : harness.all<wire::DecodeStep>(RankHarness::decode(0)))
    for (const auto& token : step.tokens)
      if (token.id == RequestId{2}) drawn.push_back(token.token);
  EXPECT_EQ(drawn.size(), preempted->generated + 1);
  // Resumed the way the control process does: what was generated is part of the prompt, and hits.
  RankHarness::Ask rest = young;
  rest.tokens.insert(rest.tokens.end(), drawn.begin(), drawn.end());
  rest.hit_blocks = static_cast<std::uint32_t>((rest.tokens.size() - 1) / 128);
  rest.output_limit = young.output_limit - static_cast<std::uint32_t>(drawn.size());
  const auto answer = harness.run(RequestId{2}, rest);
  EXPECT_EQ(answer.failure, "");
  EXPECT_EQ(answer.prefill.hit_tokens, rest.hit_blocks * 128)
      << "its full blocks were stored before it yielded";
  drawn.insert(drawn.end(), answer.tokens.begin(), answer.tokens.end());
  EXPECT_EQ(drawn, reference(young).tokens);
  expect_nothing_left(harness, RankHarness::decode(0));
  expect_nothing_left(harness, RankHarness::prefill(0));
}

TEST_F(RankTest, ImagesWaitForTheirRowsAndLetOthersPass) {
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  const std::size_t hidden = model_->shape().hidden;
  RankHarness::Ask inlined;
  inlined.tokens = TinyGguf::tokens(220, 41);
  RankHarness::Ask image = inlined;
  std::fill_n(image.tokens.begin() + 100, 60, 5);
  image.images.push_back({100, 60, 640, 480, 1200, {1, 2}});
  harness.start_prefill(RequestId{1}, image);
  RankHarness::Ask plain;
  plain.tokens = TinyGguf::tokens(90, 42);
  EXPECT_EQ(harness.run(RequestId{2}, plain).failure, "");
  EXPECT_TRUE(harness.all<wire::PrefillDone>(RankHarness::prefill(0)).empty());
  std::vector<float> rows(60 * hidden);
  const Matrix& table = model_->weights().token_embedding();
  for (std::size_t i = 0; i < 60; ++i) {
    (*best_kernels())
        ->dequantize(table.type,
                     table.data + static_cast<std::size_t>(inlined.tokens[100 + i]) * table.stride_bytes,
                     rows.data() + i * hidden, hidden);
  }
  const std::string path = harness.shm() + "/emb-1-0-0";
  auto segment = ipc::Segment::create(path, rows.size() * sizeof(float));
  ASSERT_TRUE(segment);
  std::memcpy(segment->data(), rows.data(), rows.size() * sizeof(float));
  harness.send(RankHarness::prefill(0),
               wire::Embeddings{RequestId{1}, 0, 60, static_cast<std::uint32_t>(hidden), path});
  ASSERT_TRUE(harness.reserve(RequestId{1}, image));
  auto done = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(0), RequestId{1});
  ASSERT_TRUE(done);
  EXPECT_EQ(done->logits_checksum, reference(inlined).checksums[0]);
  EXPECT_FALSE(std::filesystem::exists(path)) << "the rank takes the rows away with it";
}

TEST_F(RankTest, WhatCannotRunIsSaidAndHoldsNothing) {
  setup_.prefill_blocks = 3;
  setup_.pool = false;
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  const auto refused = [&](RankHarness::Ask ask) {
    harness.start_prefill(RequestId{7}, ask);
    auto failed = harness.wait_for<wire::RequestFailed>(RankHarness::prefill(0), RequestId{7});
    return failed ? std::pair{failed->code, failed->message}
                  : std::pair{base::Code::kInternal, std::string()};
  };
  RankHarness::Ask ask;
  EXPECT_EQ(refused(ask).first, base::Code::kInvalidArgument);
  ask.tokens = {1, 2, 640};
  EXPECT_NE(refused(ask).second.find("640"), std::string::npos);
  ask.tokens = TinyGguf::tokens(500, 1);
  EXPECT_EQ(refused(ask).first, base::Code::kResourceExhausted);
  ask.tokens = TinyGguf::tokens(2048, 1);
  EXPECT_NE(refused(ask).second.find("context of 2048"), std::string::npos);
  ask.tokens = TinyGguf::tokens(200, 1);
  ask.hit_blocks = 2;
  EXPECT_EQ(refused(ask).first, base::Code::kInvalidArgument);
  ask.hit_blocks = 0;
  harness.start_decode(RequestId{7}, ask, 1);
  auto failed = harness.wait_for<wire::RequestFailed>(RankHarness::decode(0), RequestId{7});
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->code, base::Code::kNotFound);
  ask.headroom_tokens = 100'000;
  EXPECT_FALSE(harness.reserve(RequestId{7}, ask));
  ask.headroom_tokens = 128;
  EXPECT_EQ(harness.run(RequestId{8}, ask).failure, "") << "without a pool everything is computed";
  ask.stop_tokens = {reference(ask).tokens[0]};
  const auto stopped = harness.run(RequestId{9}, ask);
  EXPECT_EQ(stopped.finish, model::FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, ask.stop_tokens);
  EXPECT_EQ(stopped.prefill.handed_blocks, 0U);
  ask.stop_tokens.clear();
  ask.hand_over = false;  // an answer of one token: nobody decodes it, nothing is waited for
  harness.start_prefill(RequestId{10}, ask);
  auto single = harness.wait_for<wire::PrefillDone>(RankHarness::prefill(0), RequestId{10});
  ASSERT_TRUE(single);
  EXPECT_EQ(single->first_token, reference(ask).tokens[0]);
  EXPECT_EQ(single->handed_blocks, 0U);
  expect_nothing_left(harness, RankHarness::prefill(0));
  expect_nothing_left(harness, RankHarness::decode(0));
}

TEST_F(RankTest, TheRealModelKnowsTheCapitalOfFrance) {
  const char* path = std::getenv("TRIMTAB_MODEL");
  if (path == nullptr) GTEST_SKIP() << "TRIMTAB_MODEL does not name the SmolLM2 GGUF";
  setup_.model_path = path;
  setup_.prefill_ranks = setup_.decode_ranks = 2;
  setup_.prefill_blocks = setup_.decode_blocks = 4;
  setup_.pool = false;
  model_ = std::move(*LocalModel::open(path, 8, 4));
  RankHarness harness(setup_);
  ASSERT_TRUE(harness.start());
  RankHarness::Ask ask;
  ask.tokens = {504, 3575, 282, 4649, 314};  // "The capital of France is"
  const auto answer = harness.run(RequestId{1}, ask);
  EXPECT_EQ(answer.failure, "");
  ASSERT_FALSE(answer.tokens.empty());
  EXPECT_EQ(answer.tokens[0], 7042);  // " Paris"
  EXPECT_EQ(answer.checksums, reference(ask).checksums);
  EXPECT_THAT(harness.stop(), Each(0));
}

}  // namespace
}  // namespace trimtab::engine
