#include "kv_state/state_host.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ipc/channel.h"

namespace trimtab::kv_state {
namespace {

/// Lines of the process's map. The stack of a thread that nobody joined is two of them, itself and its guard.
std::uint64_t mappings() {
  std::ifstream file("/proc/self/maps");
  std::uint64_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

class StateHost : public testing::Test {
 protected:
  StateHost() : directory_(testing::TempDir() + "/state-host-" + std::to_string(getpid())) {
    std::filesystem::create_directories(directory_);
    options_.memory_bytes = base::Bytes{1 << 20};
    options_.epoch_path = directory_ + "/epoch";
    options_.keep_socket = directory_ + "/keep.sock";
    options_.control_socket = directory_ + "/control.sock";
    host_ = std::thread([this] { ended_ = run_state_host(options_, stop_); });
  }
  ~StateHost() override {
    stop_ = true;
    host_.join();
    EXPECT_TRUE(ended_);
    std::filesystem::remove_all(directory_);
  }

  std::string directory_;
  StateHostOptions options_;
  std::atomic<bool> stop_{false};
  base::Status ended_;
  std::thread host_;
};

// Each engine that comes has a thread, and the thread a stack of megabytes that only a join gives back.
TEST_F(StateHost, NothingStaysOfEnginesThatWent) {
  constexpr std::uint64_t kEngines = 300;
  const auto come_and_go = [this] {
    auto engine = ipc::Channel::connect(options_.keep_socket, base::Nanos{10'000'000'000});
    ASSERT_TRUE(engine);
    kv::SnapshotName name;
    name.position = 128;
    const auto message = keep_message(name, std::vector<std::byte>(64));
    ASSERT_EQ(::send(engine->fd(), message.data(), message.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(message.size()));
  };
  for (int i = 0; i < 5; ++i) come_and_go();
  const std::uint64_t before = mappings();
  for (std::uint64_t i = 0; i < kEngines; ++i) come_and_go();
  // The last ones are joined at the listener's next look.
  for (int tries = 0; tries < 1'200 && mappings() > before + kEngines / 2; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(mappings(), before + kEngines / 2);
}

// A moment without descriptors ends no listener: who dialled then is taken afterwards.
TEST_F(StateHost, EnginesAreTakenAgainWhenThereAreDescriptorsAgain) {
  ASSERT_TRUE(ipc::Channel::connect(options_.keep_socket, base::Nanos{10'000'000'000})) << "it listens";
  const int engine = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(options_.keep_socket.size(), sizeof address.sun_path);
  std::copy(options_.keep_socket.begin(), options_.keep_socket.end(), address.sun_path);
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  // By then the first engine's descriptor is free again, and below the limit.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const int lowest_free = dup(engine);
  close(lowest_free);
  const rlimit none{static_cast<rlim_t>(lowest_free), usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ASSERT_EQ(::connect(engine, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  kv::SnapshotName name;
  name.position = 128;
  const auto message = keep_message(name, std::vector<std::byte>(64));
  ASSERT_EQ(::send(engine, message.data(), message.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(message.size()));
  int unread = 1;
  for (int tries = 0; tries < 1'200 && unread > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_EQ(ioctl(engine, SIOCOUTQ, &unread), 0);
  }
  EXPECT_EQ(unread, 0) << "nobody listens to the engine";
  close(engine);
}

}  // namespace
}  // namespace trimtab::kv_state
