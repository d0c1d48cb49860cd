#include "agents/control_server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

namespace trimtab::agents {
namespace {

using base::operator""_s;
using base::operator""_ms;

class ControlServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "trimtab-control-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    path = folder + "/control.sock";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  ControlServer make(ControlServerConfig config = {}) {
    return ControlServer(
        context, config,
        [this](ConnectionId from, const ipc::Frame& frame) {
          last = from;
          frames.push_back(frame);
        },
        [this](ConnectionId from, const std::string& why) { closed.emplace_back(from, why); });
  }
  template <class Done>
  bool turn_until(Done done) {
    for (int i = 0; i < 500 && !done(); ++i) {
      context.restart();
      context.run_one_for(std::chrono::milliseconds(10));
    }
    return done();
  }
  std::string folder, path;
  boost::asio::io_context context;
  std::optional<ConnectionId> last;
  std::vector<ipc::Frame> frames;
  std::vector<std::pair<ConnectionId, std::string>> closed;
};

TEST_F(ControlServerTest, FramesGoBothWaysInOrder) {
  auto server = make();
  ASSERT_TRUE(server.listen(path));
  auto peer = ipc::Channel::connect(path, 1_s);
  ASSERT_TRUE(
      peer);  // what is sent before the loop turns must fit in the socket: this thread serves both ends
  for (std::uint16_t i = 0; i < 50; ++i)
    ASSERT_TRUE(peer->send({i, std::vector<std::byte>(i * 50, std::byte{7})}));
  ASSERT_TRUE(turn_until([&] { return frames.size() == 50; }));
  for (std::uint16_t i = 0; i < 50; ++i) {
    EXPECT_EQ(frames[i].type, i);
    EXPECT_EQ(frames[i].payload.size(), i * 50U);
  }
  for (std::uint16_t i = 0; i < 50; ++i) server.send(*last, {i, std::vector<std::byte>(i * 10)});
  for (std::uint16_t i = 0; i < 50; ++i) {
    std::optional<ipc::Frame> frame;
    ASSERT_TRUE(turn_until([&] {
      auto received = peer->receive(base::Nanos{0});
      if (received && received->has_value()) frame = std::move(**received);
      return frame.has_value();
    }));
    EXPECT_EQ(frame->type, i);
    EXPECT_EQ(frame->payload.size(), i * 10U);
  }
  EXPECT_TRUE(turn_until([&] { return server.outgoing_bytes() == 0; }));
}

TEST_F(ControlServerTest, APeerThatDoesNotReadIsCutOffAtTheLimit) {
  auto server = make({16, 4 << 20});
  ASSERT_TRUE(server.listen(path));
  auto peer = ipc::Channel::connect(path, 1_s);
  ASSERT_TRUE(peer->send({1, {}}));
  ASSERT_TRUE(turn_until([&] { return last.has_value(); }));
  for (int i = 0; i < 100; ++i) {
    server.send(*last, {2, std::vector<std::byte>(1 << 18)});
    EXPECT_TRUE(closed.empty()) << "never from inside send";
    ASSERT_LE(server.outgoing_bytes(), (4U << 20));
  }
  ASSERT_TRUE(turn_until([&] { return !closed.empty(); }));
  EXPECT_EQ(closed.size(), 1U);
  EXPECT_EQ(closed[0].first, *last);
  EXPECT_NE(closed[0].second.find("stuck"), std::string::npos);
  EXPECT_EQ(server.connections(), 0U);
}

TEST_F(ControlServerTest, ALossIsToldOnceAndAFrameThatIsTooLongIsALoss) {
  auto server = make();
  ASSERT_TRUE(server.listen(path));
  {
    auto peer = ipc::Channel::connect(path, 1_s);
    ASSERT_TRUE(peer->send({1, {}}));
    ASSERT_TRUE(turn_until([&] { return frames.size() == 1; }));
  }
  ASSERT_TRUE(turn_until([&] { return closed.size() == 1; }));
  auto broken = ipc::Channel::connect(path, 1_s);
  const unsigned char huge[6] = {0xff, 0xff, 0xff, 0xff, 1, 0};
  ASSERT_EQ(::write(broken->fd(), huge, sizeof huge), 6);
  ASSERT_TRUE(turn_until([&] { return closed.size() == 2; }));
  EXPECT_NE(closed[0].first, closed[1].first);
  server.close(closed[1].first, "again");
  turn_until([] { return false; });
  EXPECT_EQ(closed.size(), 2U);
}

TEST_F(ControlServerTest, ConnectionsBeyondTheLimitAreClosed) {
  auto server = make({2, 1 << 20});
  ASSERT_TRUE(server.listen(path));
  std::vector<ipc::Channel> peers;
  for (int i = 0; i < 3; ++i) {
    peers.push_back(std::move(*ipc::Channel::connect(path, 1_s)));
    turn_until([&] { return server.connections() == std::min<std::size_t>(i + 1, 2); });
  }
  bool ended = false;
  ASSERT_TRUE(turn_until([&] {
    const auto received = peers[2].receive(1_ms);
    ended = !received;
    return ended;
  }));
  EXPECT_EQ(server.connections(), 2U);
}

TEST_F(ControlServerTest, StopWritesWhatIsQueuedAndThenCloses) {
  auto server = make();
  ASSERT_TRUE(server.listen(path));
  auto peer = ipc::Channel::connect(path, 1_s);
  ASSERT_TRUE(peer->send({1, {}}));
  ASSERT_TRUE(turn_until([&] { return last.has_value(); }));
  server.send(*last, {9, std::vector<std::byte>(3 << 20)});
  server.stop();
  std::optional<ipc::Frame> frame;
  bool ended = false;
  turn_until([&] {
    auto received = peer->receive(base::Nanos{0});
    if (!received) ended = true;
    if (received && received->has_value()) frame = std::move(**received);
    return ended;
  });
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->payload.size(), 3U << 20);
  EXPECT_TRUE(ended);
  EXPECT_TRUE(closed.empty()) << "no callbacks after stop";
}

TEST_F(ControlServerTest, AnOldSocketFileIsReplacedAndRemovedAtTheEnd) {
  std::ofstream(path) << "left by a process that was killed";
  {
    auto server = make();
    ASSERT_TRUE(server.listen(path));
    EXPECT_TRUE(ipc::Channel::connect(path, 1_s));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace trimtab::agents
