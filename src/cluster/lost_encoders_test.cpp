// A vision machine that dies takes its encoders one by one, and the images on it hop from one to the next:
// that is one failure of each image, not three.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cluster/cluster.h"
#include "queue/embedded_queue.h"

namespace trimtab::cluster {
namespace {

using model::Role;

class LostEncoders : public ::testing::Test {
 protected:
  void build(std::uint32_t machines) {
    config_.prefill.engines = config_.prefill.ranks = 1;
    config_.prefill.lease_ms = 600'000;
    config_.decode.groups = config_.decode.ranks = 1;
    config_.vision.machines = machines;
    config_.vision.encoders = 4;
    model::Profile profile;
    profile.cost = model::QuadraticCost{1'000'000, 1'000, 0};
    profile.context_limit = TokenCount{100'000};
    cluster_ = Cluster::make(config_, profile, queue::EmbeddedQueue::make(config_.prefill).value()).value();
    step(Joined{{Role::kPrefill, EngineId{0}, 0}, 96});
    step(Joined{{Role::kDecode, EngineId{0}, 0}, 128});
    for (std::uint32_t m = 0; m < machines; ++m) join_machine(m);
  }

  void step(const Event& event) {
    now_ = now_ + Nanos{1'000'000};
    std::vector<Action> actions;
    cluster_->step(event, now_, actions);
    for (const Action& action : actions) {
      if (const auto* encode = std::get_if<StartEncode>(&action)) at_[encode->id] = encode->encoder;
      if (const auto* fail = std::get_if<Fail>(&action)) failed_[fail->id] = fail->message;
    }
  }

  /// A request with one image, up to the encoder.
  RequestId submit() {
    const RequestId id{++last_};
    model::ImageSpan image;
    image.position = 10;
    image.tokens = 50;
    image.patches = 200;
    step(Submitted{id, TokenCount{100}, TokenCount{10}, {image}});
    step(Matched{id, TokenCount{100}, TokenCount{0}});
    step(Pull{EngineId{0}, {{Nanos{1'000'000'000}, 96}}});
    EXPECT_TRUE(at_.contains(id)) << "no encoder was asked";
    return id;
  }

  void join_machine(std::uint32_t machine) {
    for (std::uint32_t e = 0; e < 4; ++e) step(Joined{{Role::kVision, EngineId{machine}, e}, 0});
  }
  /// Each time the encoder that has the image first: the worst order there is.
  void lose_machine(std::uint32_t machine, RequestId follow) {
    std::vector<std::uint32_t> left{0, 1, 2, 3};
    while (!left.empty()) {
      const EncoderId has = at_.at(follow);
      auto next = has.machine.value == machine ? std::ranges::find(left, has.encoder) : left.begin();
      if (next == left.end()) next = left.begin();
      step(Lost{{Role::kVision, EngineId{machine}, *next}});
      left.erase(next);
    }
  }

  model::ClusterConfig config_;
  std::unique_ptr<Cluster> cluster_;
  std::map<RequestId, EncoderId> at_;  // the encoder that was asked last
  std::map<RequestId, std::string> failed_;
  std::uint64_t last_ = 0;
  Nanos now_;
};

TEST_F(LostEncoders, AnImageOutlivesTheDeathOfAWholeMachine) {
  build(1);
  const RequestId id = submit();
  lose_machine(0, id);
  EXPECT_TRUE(failed_.empty()) << failed_[id];
  at_.clear();
  join_machine(0);
  ASSERT_TRUE(at_.contains(id)) << "it waited for an encoder";
  step(Encoded{at_.at(id), id, 0, Nanos{1'000'000}});
  EXPECT_TRUE(failed_.empty());
}

TEST_F(LostEncoders, OneMachineAfterTheOtherIsOneTryEach) {
  build(2);
  const RequestId id = submit();
  const std::uint32_t first = at_.at(id).machine.value;
  lose_machine(first, id);
  EXPECT_EQ(at_.at(id).machine.value, 1 - first);
  lose_machine(1 - first, id);
  EXPECT_TRUE(failed_.empty()) << failed_[id];
}

// Each encoder that it kills is restarted before the next one dies: those are tries of their own.
TEST_F(LostEncoders, AnImageThatKillsItsEncodersRunsOutOfTries) {
  build(1);
  const RequestId id = submit();
  for (int died = 0; died < 3; ++died) {
    ASSERT_TRUE(failed_.empty()) << "after " << died;
    const EncoderId has = at_.at(id);
    step(Lost{Place::of(has)});
    step(Joined{Place::of(has), 0});
  }
  ASSERT_TRUE(failed_.contains(id));
  EXPECT_NE(failed_[id].find("failed on 3 encoders"), std::string::npos) << failed_[id];
}

}  // namespace
}  // namespace trimtab::cluster
