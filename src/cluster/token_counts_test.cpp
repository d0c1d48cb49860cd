#include <gtest/gtest.h>

#include <algorithm>

#include "cluster/cluster.h"
#include "cluster/pull_agents.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using model::Role;

/// One prefill rank and one decode rank, and a host that answers everything at once.
class OneOfEach {
 public:
  explicit OneOfEach(bool records) : agents_(config(), profile()) {
    cluster_ =
        Cluster::make(config(), profile(), queue::EmbeddedQueue::make(config().prefill).value()).value();
    cluster_->keep_records(records);
    step(Joined{{Role::kPrefill, EngineId{0}, 0}, 64});
    step(Joined{{Role::kDecode, EngineId{0}, 0}, 64});
  }
  void step(const Event& event) {
    now_ += Nanos{1'000};
    std::vector<Action> actions;
    cluster_->step(event, now_, actions);
    agents_.observe(event);
    for (const Action& action : actions) agents_.observe(action);
    std::vector<Event> pulls;
    agents_.take_pulls(pulls);
    for (const Event& pull : pulls) step(pull);
    for (const Action& action : actions) {
      if (const auto* match = std::get_if<Match>(&action)) {
        step(Matched{match->id, TokenCount{100}, TokenCount{0}});
      } else if (const auto* reserve = std::get_if<Reserve>(&action)) {
        step(Reserved{reserve->rank, reserve->id, true, 10});
      } else if (const auto* target = std::get_if<SendTarget>(&action)) {
        step(PrefillDone{target->prefill, target->id, true, {}, TokenCount{100}, {}});
      } else if (const auto* deliver = std::get_if<Deliver>(&action)) {
        delivered.push_back(deliver->count);
      } else if (const auto* finish = std::get_if<Finish>(&action)) {
        finished = finish->output;
      } else if (std::holds_alternative<Log>(action)) {
        ++logs;
      }
    }
  }
  std::vector<std::uint32_t> delivered;
  std::optional<TokenCount> finished;
  int logs = 0;
  Census census() const { return cluster_->census(); }

 private:
  static model::ClusterConfig config() {
    model::ClusterConfig config;
    config.prefill.engines = config.prefill.ranks = config.decode.groups = config.decode.ranks = 1;
    config.vision.machines = 0;
    return config;
  }
  static model::Profile profile() {
    model::Profile profile;
    profile.cost = model::QuadraticCost{1'000'000, 1'000'000, 20'000};
    return profile;
  }
  PullAgents agents_;
  std::unique_ptr<Cluster> cluster_;
  Nanos now_;
};

DecodeStepped step_of(RequestId id, std::uint32_t count) {
  DecodeStepped event;
  event.from = {EngineId{0}, 0};
  event.tokens.push_back({id, model::FinishReason::kNone, count});
  return event;
}

TEST(TokenCounts, AReportMayHoldSeveralTokensAndNeverDeliversBeyondTheLimit) {
  OneOfEach world(true);
  const RequestId id{7};
  world.step(Submitted{id, TokenCount{100}, TokenCount{10}, {}, base::kForever});
  world.step(step_of(id, 4));
  EXPECT_FALSE(world.finished);
  world.step(step_of(id, 20));
  EXPECT_EQ(world.delivered, (std::vector<std::uint32_t>{1, 4, 5}));
  EXPECT_EQ(world.finished, TokenCount{10});
  EXPECT_GT(world.logs, 5);
}

TEST(TokenCounts, WithoutRecordsTheDecisionsAreTheSame) {
  OneOfEach world(false);
  const RequestId id{7};
  world.step(Submitted{id, TokenCount{100}, TokenCount{3}, {}, base::kForever});
  world.step(step_of(id, 2));
  EXPECT_EQ(world.finished, TokenCount{3});
  EXPECT_EQ(world.logs, 0);
}

}  // namespace
}  // namespace trimtab::cluster
