// A decode rank's load may come apart from its tokens, and late: what is older than the last word is not
// heard.
#include <gtest/gtest.h>

#include <vector>

#include "cluster/cluster.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using model::Role;

class LateReports : public ::testing::Test {
 protected:
  LateReports() {
    config_.prefill.engines = config_.prefill.ranks = 1;
    config_.decode.groups = config_.decode.ranks = 1;
    config_.vision.machines = 0;
    model::Profile profile;
    profile.cost = model::QuadraticCost{1'000'000, 1'000, 0};
    profile.context_limit = TokenCount{100'000};
    cluster_ = Cluster::make(config_, profile, queue::EmbeddedQueue::make(config_.prefill).value()).value();
    step(Joined{{Role::kPrefill, EngineId{0}, 0}, 96});
    step(Joined{{Role::kDecode, EngineId{0}, 0}, 128});
  }

  void step(const Event& event) {
    now_ = now_ + Nanos{1'000'000};
    std::vector<Action> actions;
    cluster_->step(event, now_, actions);
  }

  void report(std::int64_t running, std::int64_t kv, Nanos age) {
    DecodeStepped stepped;
    stepped.from = {EngineId{0}, 0};
    stepped.running = running;
    stepped.kv = TokenCount{kv};
    stepped.load_age = age;
    step(stepped);
  }

  std::int64_t believed() const {
    for (const EngineStatus& engine : cluster_->status().engines) {
      if (engine.role == Role::kDecode) return engine.ranks[0].running;
    }
    return -1;
  }

  model::ClusterConfig config_;
  std::unique_ptr<Cluster> cluster_;
  Nanos now_;
};

TEST_F(LateReports, TokensAloneChangeNoLoad) {
  report(5, 1'000, Nanos{});
  EXPECT_EQ(believed(), 5) << "load that others placed";
  report(-1, 0, Nanos{});
  EXPECT_EQ(believed(), 5);
}

TEST_F(LateReports, TheYoungestWordCountsWheneverItComes) {
  report(5, 1'000, Nanos{});
  report(2, 300, Nanos{10'000'000});
  EXPECT_EQ(believed(), 5) << "this one is older";
  report(3, 700, Nanos{500'000});
  EXPECT_EQ(believed(), 3);
}

}  // namespace
}  // namespace trimtab::cluster
