#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agents/cluster_backend.h"
#include "agents/testing/fake_member.h"
#include "ipc/steady_clock.h"
#include "obs/registry.h"

namespace trimtab::agents::testing {

/// Records what a client would see, and finds calls out of order.
struct RecordingSink final : cluster::Sink {
  std::optional<cluster::Accepted> accepted;
  std::vector<std::int32_t> tokens;
  std::optional<cluster::Finished> finished;
  std::optional<base::Error> failed;
  std::optional<base::Nanos> retry_after;
  bool closed = false;  // the test cancelled: any further call is a fault
  std::function<void()> after_token;

  bool ended() const { return finished || failed; }
  void expect_open() const {
    EXPECT_FALSE(closed) << "called after cancel";
    EXPECT_FALSE(ended()) << "called after the end";
  }
  void on_accepted(const cluster::Accepted& a) override {
    expect_open();
    EXPECT_FALSE(accepted) << "accepted twice";
    accepted = a;
  }
  void on_tokens(std::span<const std::int32_t> ids) override {
    expect_open();
    EXPECT_TRUE(accepted) << "a token before the acceptance";
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    if (after_token) after_token();
  }
  void on_finished(const cluster::Finished& f) override {
    expect_open();
    finished = f;
  }
  void on_failed(const base::Error& error, std::optional<base::Nanos> wait) override {
    expect_open();
    failed = error;
    retry_after = wait;
  }
};

/// The pool as a set of keys.
struct FakePrefixes final : PrefixSource {
  std::set<model::BlockKey> keys;
  std::uint64_t asked = 0, counted = 0;
  std::uint32_t prompt_blocks = 0;                               // of the last question
  std::vector<std::pair<std::uint64_t, std::uint32_t>> answers;  // request, tokens
  base::Result<kv_pool::Match> match(std::span<const model::BlockKey> wanted, bool first,
                                     std::uint32_t blocks) override {
    prompt_blocks = blocks;
    ++asked;
    counted += first ? 1 : 0;
    std::uint32_t hit = 0;
    while (hit < wanted.size() && keys.contains(wanted[hit])) ++hit;
    return kv_pool::Match{hit, 1, 1'000 + asked};
  }
  void answered(std::uint64_t request, std::uint32_t tokens) override {
    answers.emplace_back(request, tokens);
  }
  bool there = true;
  std::optional<kv_pool::PoolStats> stats() override {
    return there ? std::optional(kv_pool::PoolStats{}) : std::nullopt;
  }
};

inline model::Profile fake_profile() {
  model::Profile profile;
  profile.name = "fake";
  profile.source = "made for tests: 10 us a token, 0.5 ns a query-key pair";
  profile.context_limit = base::TokenCount{8192};
  profile.cost = model::QuadraticCost{0, 10'000'000, 500};
  profile.quota_scope = model::QuotaScope::kWholeStep;
  return profile;
}

inline model::ClusterConfig fake_config() {
  model::ClusterConfig config;
  config.path = "fake.toml";
  config.prefill.tier_bounds_tokens = {512, 2048, 4096};
  config.prefill.quota_scope = model::QuotaScope::kWholeStep;
  config.gateway.requests_in_flight_max = 100'000;
  return config;
}

/// A backend with fake engines of every configured place, on one event loop that the test turns.
class ClusterFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "trimtab-agents-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    config = fake_config();
  }
  void TearDown() override {
    members.clear();
    backend.reset();
    std::filesystem::remove_all(folder);
  }

  ClusterBackendOptions options() {
    ClusterBackendOptions o;
    o.config = config;
    o.profile = fake_profile();
    o.profile.kv = kv;
    o.runtime_dir = folder;
    o.shm_dir = folder;
    o.log_dir = folder + "/log";
    o.tokenizer_fingerprint = "fake";
    o.warn = [this](const std::string& text) { warnings.push_back(text); };
    return o;
  }
  void start_backend(std::unique_ptr<PrefixSource> source = nullptr) {
    if (source == nullptr) {
      auto fake = std::make_unique<FakePrefixes>();
      prefixes = fake.get();
      source = std::move(fake);
    }
    auto started = ClusterBackend::start(options(), context, clock, registry, std::move(source));
    ASSERT_TRUE(started) << to_string(started.error());
    backend = std::move(*started);
  }
  wire::Hello hello(model::Role role, std::uint32_t engine, std::uint32_t rank) const {
    wire::Hello h;
    h.role = role;
    h.engine = engine;
    h.rank = rank;
    h.pid = 1000 + static_cast<std::int32_t>(engine * 10 + rank);
    h.blocks_total = role == model::Role::kPrefill  ? static_cast<std::uint32_t>(config.prefill.kv_blocks)
                     : role == model::Role::kDecode ? static_cast<std::uint32_t>(config.decode.kv_blocks)
                                                    : 0;
    h.model_fingerprint = 77;
    h.segment = folder + "/arena";
    return h;
  }
  FakeMember& add(const wire::Hello& h) {
    members.push_back(std::make_unique<FakeMember>(context, folder + "/control.sock", h));
    members.back()->connect();
    return *members.back();
  }
  void add_engines() {
    for (std::uint32_t e = 0; e < config.prefill.engines; ++e)
      for (std::uint32_t r = 0; r < config.prefill.ranks; ++r) add(hello(model::Role::kPrefill, e, r));
    for (std::uint32_t e = 0; e < config.decode.groups; ++e)
      for (std::uint32_t r = 0; r < config.decode.ranks; ++r) add(hello(model::Role::kDecode, e, r));
    for (std::uint32_t e = 0; e < config.vision.machines; ++e)
      for (std::uint32_t r = 0; r < config.vision.encoders; ++r) add(hello(model::Role::kVision, e, r));
  }
  void start_all() {
    ASSERT_NO_FATAL_FAILURE(start_backend());
    add_engines();
    ASSERT_TRUE(turn_until([&] { return backend->ready(); }));
  }

  /// Turns the loop until `done`; false after `patience`.
  bool turn_until(const std::function<bool()>& done,
                  std::chrono::milliseconds patience = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      context.restart();
      context.run_one_for(std::chrono::milliseconds(20));
    }
    return true;
  }
  void turn_for(std::chrono::milliseconds span) {
    // What this process was kept from the processor for is not turned: a turn counts for no more than it may
    // take.
    constexpr std::chrono::milliseconds kTurn{20};
    for (std::chrono::nanoseconds left = span; left.count() > 0;) {
      const auto begin = std::chrono::steady_clock::now();
      context.restart();
      context.run_one_for(kTurn);
      left -= std::min<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin, kTurn);
    }
  }

  std::vector<std::int32_t> prompt(std::size_t tokens, std::int32_t salt = 1) const {
    std::vector<std::int32_t> list(tokens);
    for (std::size_t i = 0; i < tokens; ++i) list[i] = salt * 1000 + static_cast<std::int32_t>(i % 997);
    return list;
  }
  cluster::Submission submission(std::vector<std::int32_t> tokens, std::uint32_t output_limit) {
    cluster::Submission s;
    s.name = "msg_" + std::to_string(++names);
    s.tokens = std::move(tokens);
    s.output_limit = output_limit;
    return s;
  }
  /// An image of 16 placeholder tokens at `position`.
  static cluster::PromptImage image(std::uint32_t position, std::uint64_t content) {
    cluster::PromptImage i;
    i.span = {position, 16, 64, 64, 16, {content, content}};
    i.media_type = "image/png";
    i.bytes = {1, 2, 3};
    return i;
  }
  nlohmann::json journey(const std::string& name) {
    const auto text = backend->journey(name);
    return text ? nlohmann::json::parse(*text) : nlohmann::json();
  }
  nlohmann::json status() { return nlohmann::json::parse(backend->status()); }

  FakeMember& member(model::Role role, std::uint32_t engine, std::uint32_t rank) {
    for (const auto& m : members) {
      const wire::Hello& h = m->hello();
      if (h.role == role && h.engine == engine && h.rank == rank) return *m;
    }
    ADD_FAILURE() << "no such member";
    std::abort();
  }
  void each(model::Role role, const std::function<void(FakeMember&)>& visit) {
    for (const auto& m : members)
      if (m->hello().role == role) visit(*m);
  }
  std::size_t holding() const {
    std::size_t sum = 0;
    for (const auto& m : members) sum += m->holding();
    return sum;
  }
  std::size_t segments_left() const {
    std::size_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder))
      count += file.path().filename().string().starts_with("emb-") ? 1 : 0;
    return count;
  }
  /// Nothing of any request is left anywhere: engines, machine, files, gauges.
  bool clean() {
    const auto s = status();
    const auto& r = s["requests"];
    for (const char* key : {"in_flight", "matching", "queued", "prefilling", "decoding", "held", "releases"})
      if (r[key] != 0) return false;
    for (const auto& tier : s["tiers"])
      if (tier["queued"] != 0 || tier["queued_quota_ms"] != 0.0) return false;
    for (const auto& engine : s["engines"]) {
      for (const auto& rank : engine["ranks"]) {
        if (rank["requests"] != 0 || rank.value("running", 0) != 0 || rank.value("kv_tokens", 0) != 0 ||
            rank.value("patches_in_flight", 0) != 0)
          return false;
      }
    }
    return s["encodings_in_flight"] == 0 && holding() == 0 && segments_left() == 0;
  }

  std::string folder;
  model::ClusterConfig config;
  model::KvLayout kv;  // of the profile
  boost::asio::io_context context;
  ipc::SteadyClock clock;
  obs::Registry registry;
  std::unique_ptr<ClusterBackend> backend;
  FakePrefixes* prefixes = nullptr;
  std::vector<std::unique_ptr<FakeMember>> members;
  std::vector<std::string> warnings;
  int names = 0;
};

}  // namespace trimtab::agents::testing
