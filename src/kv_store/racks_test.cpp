#include <gtest/gtest.h>

#include "kv_store/map_search.h"
#include "kv_store/testing/fleet.h"
#include "kv_store/testing/shared_target.h"

namespace trimtab::kv_store {
namespace {

using testing::Fleet;
using testing::SharedContent;
using testing::SharedTarget;

/// Targets that outlive the stores over them, each in a rack.
class Racks : public ::testing::Test {
 protected:
  void stand(std::uint32_t targets, std::uint32_t racks) {
    while (contents_.size() < targets) {
      racks_.push_back(static_cast<std::uint32_t>(contents_.size()) % racks);
      contents_.push_back(std::make_shared<SharedContent>(8ULL << 20, contents_.size() + 1));
      places_.push_back("mem:" + std::to_string(contents_.size()));
    }
  }
  base::Result<OpenedPool> open(std::vector<std::uint32_t> racks) {
    std::vector<std::unique_ptr<kv_target::Target>> targets;
    for (const auto& content : contents_) targets.push_back(std::make_unique<SharedTarget>(content));
    StoreOptions options = Fleet::small();
    options.racks = std::move(racks);
    auto opened = open_pool(std::move(targets), places_, std::move(options), clock_, kSecond);
    for (int i = 0; opened && i < 3'000 && !opened->store->map_settled(); ++i) {
      clock_.advance(base::Nanos{10'000'000});
      opened->store->poll(clock_.now(), events_);
    }
    return opened;
  }
  /// The most shards of one block in one rack.
  std::size_t most_in_a_rack(const StripedStore& store) const {
    std::size_t most = 0;
    for (const placement::Stripe& group : store.map().stripes().groups)
      for (const auto node : group)
        most = std::max(most, static_cast<std::size_t>(std::ranges::count_if(
                                  group, [&](auto other) { return racks_[other] == racks_[node]; })));
    return most;
  }

  static constexpr base::Nanos kSecond{1'000'000'000};
  base::ManualClock clock_;
  std::vector<std::shared_ptr<SharedContent>> contents_;
  std::vector<std::string> places_;
  std::vector<std::uint32_t> racks_;
  std::vector<StoreEvent> events_;
};

TEST_F(Racks, NoTwoShardsStandInOneAlsoAfterARestartThatDoesNotSayThem) {
  stand(26, 13);
  const auto made = open(racks_);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(most_in_a_rack(*made->store), 1U);
  const auto again = open({});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->store->map().stripes().groups, made->store->map().stripes().groups);
}

TEST_F(Racks, WhoJoinsKeepsTheRule) {
  stand(26, 13);
  ASSERT_TRUE(open(racks_));
  stand(39, 13);
  const auto unsaid = open({});
  ASSERT_FALSE(unsaid);
  EXPECT_NE(unsaid.error().message.find("racks for 13 new nodes"), std::string::npos)
      << unsaid.error().message;
  const auto wider = open(racks_);
  ASSERT_TRUE(wider) << wider.error().message;
  EXPECT_EQ(wider->store->map().holders().size(), 39U);
  EXPECT_EQ(most_in_a_rack(*wider->store), 1U);
  // A map that another build would not make again is made anew, and by the same rule.
  const auto anew = wider->store->map_keeper()->record().anew();
  ASSERT_TRUE(anew);
  EXPECT_EQ(anew->map()->stripes().racks, racks_);
}

TEST_F(Racks, AMapThatCannotBeMadeAnewByTheRuleIsMadeWithoutIt) {
  stand(26, 13);
  ASSERT_TRUE(open(racks_));
  stand(27, 13);  // rack 0 has three of 27: too many for a new map, not for one more target
  const auto wider = open(racks_);
  ASSERT_TRUE(wider) << wider.error().message;
  EXPECT_EQ(most_in_a_rack(*wider->store), 1U);
  const auto anew = wider->store->map_keeper()->record().anew();
  ASSERT_TRUE(anew) << anew.error().message;
  EXPECT_TRUE(anew->map());
}

TEST_F(Racks, AFewTargetsThatBecomeManyKeepTheRule) {
  stand(8, 12);
  ASSERT_TRUE(open(racks_));
  stand(24, 12);
  const auto many = open(racks_);
  ASSERT_TRUE(many) << many.error().message;
  EXPECT_EQ(most_in_a_rack(*many->store), 1U);
}

TEST_F(Racks, APoolThatWasMadeWithoutThemSaysSo) {
  stand(13, 13);
  ASSERT_TRUE(open({}));
  stand(14, 13);
  const auto later = open(racks_);
  ASSERT_TRUE(later) << later.error().message;
  EXPECT_EQ(later->store->map().holders().size(), 14U);
  EXPECT_TRUE(std::ranges::any_of(later->notes, [](const std::string& note) {
    return note.find("made without racks") != std::string::npos;
  }));
}

}  // namespace
}  // namespace trimtab::kv_store
