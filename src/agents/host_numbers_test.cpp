#include <gmock/gmock.h>

#include <fstream>

#include "agents/testing/cluster_fixture.h"

namespace trimtab::agents::testing {
namespace {

using ::testing::HasSubstr;

class HostNumbers : public ClusterFixture {};

// A clock may be set back between two lives; engines and the decision log know the numbers of the last one.
TEST_F(HostNumbers, RequestsAreNumberedByTheLifeOfTheGatewayAndNotByTheClock) {
  constexpr std::uint64_t kALife = std::uint64_t{1} << 36;
  const auto first_ids = [&] {
    start_all();
    const auto ask = [&] {
      return backend->submit(submission(prompt(100), 1), std::make_shared<RecordingSink>());
    };
    const std::pair ids{ask().value, ask().value};
    members.clear();
    backend.reset();
    return ids;
  };
  EXPECT_EQ(first_ids(), std::pair(kALife + 1, kALife + 2));
  EXPECT_EQ(first_ids(), std::pair(2 * kALife + 1, 2 * kALife + 2));
  std::ofstream(folder + "/gateway.lives") << "41\n";
  EXPECT_EQ(first_ids(), std::pair(42 * kALife + 1, 42 * kALife + 2));
  std::ofstream(folder + "/gateway.lives") << "torn\n";
  const auto refused =
      ClusterBackend::start(options(), context, clock, registry, std::make_unique<FakePrefixes>());
  ASSERT_FALSE(refused) << "a life without a number of its own would use those of another";
  EXPECT_THAT(refused.error().message, HasSubstr("gateway.lives holds no number of lives"));
}

}  // namespace
}  // namespace trimtab::agents::testing
