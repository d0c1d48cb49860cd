#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>

#include "base/hash.h"
#include "base/prng.h"
#include "engine/inbox.h"
#include "engine/local_model.h"
#include "engine/prefill_rank.h"
#include "engine/rank_state.h"
#include "engine/sampler.h"
#include "engine/tiny_gguf.h"
#include "ipc/steady_clock.h"
#include "kv/key_chain.h"
#include "kv_pool/testing/hand_loader.h"

namespace trimtab::engine {

/// Keeps what a rank says. The mover's thread says some of it.
class KeptOutbox final : public Outbox {
 public:
  void send_frame(const ipc::Frame& frame) override {
    const std::lock_guard lock(mutex_);
    frames_.push_back(frame);
  }
  template <class M>
  std::vector<M> all() {
    const std::lock_guard lock(mutex_);
    std::vector<M> messages;
    for (const ipc::Frame& frame : frames_)
      if (wire::type_of(frame) == M::kType) messages.push_back(*wire::from_frame<M>(frame));
    return messages;
  }

 private:
  std::mutex mutex_;
  std::vector<ipc::Frame> frames_;
};

/// Copies nothing, and takes as long as the test says.
class HandTransport final : public Transport {
 public:
  base::Status copy(const KvArena&, std::uint32_t, model::RankId, const std::string&,
                    std::uint32_t) override {
    std::unique_lock lock(mutex_);
    ++copies_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    return {};
  }
  void hold(bool on) {
    const std::lock_guard lock(mutex_);
    held_ = on;
    changed_.notify_all();
  }
  /// Until so many were begun.
  bool begun(int copies, int seconds = 20) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(seconds), [&] { return copies_ >= copies; });
  }
  int copies() {
    const std::lock_guard lock(mutex_);
    return copies_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int copies_ = 0;
  bool held_ = false;
};

/// Does something before the step waits for a layer, so that what a layer's coming depends on is certain.
class Spy final : public LayerWait {
 public:
  Spy(LayerWait& real, const std::function<void(std::size_t)>& before) : real_(real), before_(before) {}
  bool await(std::size_t layer) override {
    before_(layer);
    return real_.await(layer);
  }

 private:
  LayerWait& real_;
  const std::function<void(std::size_t)>& before_;
};

/// A prefill rank in this process, whose turns a test makes, and a loader that it drives by hand: what
/// happens before what is certain.
class HitSwapTest : public testing::Test {
 protected:
  using HandLoader = kv_pool::testing::HandLoader;
  using RequestId = model::RequestId;
  static constexpr std::uint32_t kLayers = 8;

  struct Ask {
    std::vector<std::int32_t> tokens;
    std::int32_t first_token = 0;
    std::uint64_t checksum = 0;
    std::vector<std::vector<std::byte>> blocks;  // the right KV of the hit
  };

  HitSwapTest() { gguf_.layers = kLayers; }
  void SetUp() override {
    path_ = testing::TempDir() + "/swap-" + std::to_string(getpid());
    ASSERT_TRUE(gguf_.write(path_ + ".gguf"));
    right_ = std::move(*LocalModel::open(path_ + ".gguf", 8, 24));
    own_ = std::move(*LocalModel::open(path_ + ".gguf", 8, 24));
    serve();
    hit_ = ask(300, 2, 1);
  }
  void TearDown() override {
    role_.reset();
    mover_.reset();
    state_.reset();
    loader_.reset();
    std::filesystem::remove(path_ + ".gguf");
  }
  void serve() {
    loader_.reset();
    loader_ = std::make_unique<HandLoader>(path_ + ".sock", right_->arena().block_bytes(), kLayers);
  }
  /// A rank that believes a token to cost so much.
  void begin(base::Nanos per_token) {
    model::KvLayout kv;
    kv.block_bytes = base::Bytes{static_cast<std::int64_t>(own_->arena().block_bytes())};
    kv.layer_bytes.assign(kLayers, base::Bytes{kv.block_bytes.value / kLayers});
    auto layout = HitLayout::make(kv, own_->shape(), own_->arena().block_bytes());
    ASSERT_TRUE(layout);
    BlockMover::Hooks hooks;
    hooks.done = [this](MoveDone done) { inbox_.post(std::move(done)); };
    hooks.handed = [this](const wire::PrefillDone& done) { outbox_.send(done); };
    hooks.coming = [this](HitComing coming) { inbox_.post(std::move(coming)); };
    BlockMoverOptions options{path_ + ".sock", std::move(layout)};
    options.fetch_patience = fetch_patience_;
    options.answer_patience = base::Nanos{120'000'000'000};  // tests hold answers back
    mover_ = std::make_unique<BlockMover>(own_->arena(), transport_, std::move(options), std::move(hooks));
    PrefillRankConfig config;
    config.scheduler.step_budget = base::Nanos{1'000'000'000'000};
    config.context_tokens = 2'048;
    policy::CostModel cost(model::QuadraticCost{0, per_token.value * 1'000, 0},
                           model::QuotaScope::kWholeStep);
    role_ = std::make_unique<PrefillRank>(config, std::move(cost), own_->shape(), own_->arena(), *mover_,
                                          outbox_, state_.get());
  }
  /// What models with a window are told besides.
  virtual void complete(wire::PrefillStart&) {}
  Ask ask(std::size_t tokens, std::uint32_t hit_blocks, std::uint64_t seed) {
    Ask ask;
    base::Prng prng(seed);
    ask.tokens.resize(tokens);
    for (auto& id : ask.tokens) id = static_cast<std::int32_t>(prng.below(640));
    const auto logits = right_->run(ask.tokens);
    ask.first_token = sample(*logits, {}, tokens);
    ask.checksum = base::checksum_of(std::span<const float>(*logits));
    for (std::uint32_t i = 0; i < hit_blocks; ++i) {
      const auto block = right_->arena().block(i);
      ask.blocks.emplace_back(block.begin(), block.end());
    }
    return ask;
  }
  void start(std::uint64_t id, const Ask& ask, bool hand_over = false) {
    wire::PrefillStart start;
    start.id = RequestId{id};
    start.tokens = ask.tokens;
    start.keys = kv::block_keys(kv::root_key({"test", "f16", "none", "", ""}), ask.tokens, {});
    start.hit_tokens = static_cast<std::uint32_t>(ask.blocks.size() * 128);
    start.hand_over = hand_over ? 1 : 0;
    complete(start);
    ASSERT_TRUE(role_->on_frame(wire::to_frame(start)));
  }
  /// A place for two blocks.
  static wire::DecodeTarget elsewhere(std::uint64_t id) {
    return {RequestId{id}, {model::EngineId{0}, 0}, "elsewhere", {0, 1}};
  }
  /// The hit's blocks lie in slots 0, 1, ..
  HandLoader::Plan plan_of(const Ask& ask) {
    auto plan = loader_->next_plan();
    if (!plan) {
      ADD_FAILURE() << "no plan came";
      return {};
    }
    for (std::uint32_t i = 0; i < ask.blocks.size(); ++i)
      std::copy(ask.blocks[i].begin(), ask.blocks[i].end(), loader_->slot(i).begin());
    return *plan;
  }
  void give(const HandLoader::Plan& plan, const Ask& ask, std::uint32_t layers) {
    for (std::uint32_t i = 0; i < ask.blocks.size(); ++i) {
      if (layers == kLayers)
        loader_->whole(plan, i, i, ask.blocks[i]);
      else
        loader_->layers(plan, i, i, layers);
    }
  }
  /// A rank to which a token costs so much, and a request whose hit has come so far.
  HandLoader::Plan begin_hit(base::Nanos per_token, std::uint32_t layers = 1, std::uint64_t id = 1) {
    begin(per_token);
    start(id, hit_);
    const auto plan = plan_of(hit_);
    give(plan, hit_, layers);
    return plan;
  }
  void take_events() {
    for (Event& event : inbox_.take()) {
      if (auto* done = std::get_if<MoveDone>(&event)) {
        ASSERT_FALSE(done->cancelled) << "nothing was aborted";
        role_->on_moved(std::move(*done));
      } else if (auto* state = std::get_if<StateDone>(&event)) {
        if (hold_states_)
          held_.push_back(std::move(*state));
        else
          role_->on_state(std::move(*state));
      } else {
        role_->on_coming(std::move(std::get<HitComing>(event)));
      }
    }
  }
  /// One turn of the rank's loop; false when there is nothing to compute.
  bool step(const std::function<void(std::size_t)>& before = [](std::size_t) {}) {
    take_events();
    const RankRole::Proposal proposal = role_->propose();
    if (!proposal.has_work) return false;
    const auto planned = role_->plan(proposal.vote);
    std::vector<Segment> segments(planned.begin(), planned.end());
    std::deque<Spy> spies;
    for (Segment& segment : segments)
      if (segment.wait != nullptr) segment.wait = &spies.emplace_back(*segment.wait, before);
    EXPECT_TRUE(own_->step(segments));
    waited_ = spies.size();
    role_->finish_step(own_->forward());
    return true;
  }
  /// Turns until a step was made.
  bool step_soon(const std::function<void(std::size_t)>& before = [](std::size_t) {}) {
    for (int i = 0; i < 20'000; ++i) {
      if (step(before)) return true;
      usleep(1'000);
    }
    return false;
  }
  /// Turns until a step was made for which each further layer came only after computing had come to it, and
  /// those it came to: a step that waits for all never ends.
  std::vector<std::size_t> layers_of_step(const HandLoader::Plan& plan) {
    std::vector<std::size_t> asked;
    EXPECT_TRUE(step_soon([&](std::size_t layer) {
      asked.push_back(layer);
      give(plan, hit_, static_cast<std::uint32_t>(layer) + 1);
    }));
    return asked;
  }
  /// The same, but at layer 5 the first block is whole and the second gone.
  bool step_that_loses_a_block(const HandLoader::Plan& plan) {
    return step_soon([&](std::size_t layer) {
      if (layer == 5) {
        loader_->whole(plan, 0, 0, hit_.blocks[0]);
        loader_->over(plan, 1, kv_pool::FetchOutcome::kMissing);
      } else if (layer < 5) {
        give(plan, hit_, static_cast<std::uint32_t>(layer) + 1);
      }
    });
  }
  /// The request is aborted, and the rank told of the ends of moves until it says that it holds nothing.
  std::optional<wire::Released> released(std::uint64_t id) {
    for (int i = 0; i < 20'000; ++i) {
      for (Event& event : inbox_.take())
        if (auto* moved = std::get_if<MoveDone>(&event)) role_->on_moved(std::move(*moved));
      for (const auto& released : outbox_.all<wire::Released>())
        if (released.id == RequestId{id}) return released;
      usleep(1'000);
    }
    return std::nullopt;
  }
  void abort(std::uint64_t id) { ASSERT_TRUE(role_->on_frame(wire::to_frame(wire::Abort{RequestId{id}}))); }
  std::optional<wire::PrefillDone> done(std::uint64_t id) {
    for (int i = 0; i < 20'000; ++i) {
      for (const auto& done : outbox_.all<wire::PrefillDone>())
        if (done.id == RequestId{id}) return done;
      step();
      usleep(1'000);
    }
    return std::nullopt;
  }
  void expect_right(const std::optional<wire::PrefillDone>& done, const Ask& ask) {
    ASSERT_TRUE(done);
    EXPECT_EQ(done->first_token, ask.first_token);
    EXPECT_EQ(done->logits_checksum, ask.checksum);
    EXPECT_EQ(done->hit_tokens + done->computed_tokens, ask.tokens.size());
    for (int i = 0; i < 2'000 && !role_->idle(); ++i) {
      take_events();
      usleep(1'000);
    }
    EXPECT_EQ(role_->blocks_free(), own_->arena().blocks());
  }

  static constexpr base::Nanos kDear{1'000'000'000};  // a token: no wait is long beside a step
  base::Nanos fetch_patience_{10'000'000'000};
  TinyGguf gguf_;
  std::string path_;
  std::unique_ptr<LocalModel> right_, own_;
  std::unique_ptr<HandLoader> loader_;
  Inbox inbox_{[] {}};
  KeptOutbox outbox_;
  HandTransport transport_;
  std::unique_ptr<BlockMover> mover_;
  std::unique_ptr<RankState> state_;  // of models with a window
  bool hold_states_ = false;          // what the state mover says is not heard yet
  std::vector<StateDone> held_;
  std::unique_ptr<PrefillRank> role_;
  Ask hit_;
  std::size_t waited_ = 0;  // segments of the last step that waited for layers
};

}  // namespace trimtab::engine
