#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <utility>

#include "kv_remote/net/target_server.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_remote::testing {

/// A process that serves a directory as `trimtab kv-target` does, so that it can be killed at any moment and
/// started again. Each has an address of its own: nobody's outgoing connection takes its port meanwhile. To
/// be started before the test has threads.
class TargetProcess {
 public:
  TargetProcess(std::string directory, std::uint32_t number)
      : directory_(std::move(directory)), host_("127.77.0." + std::to_string(number + 1)) {}
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess(TargetProcess&& other) noexcept
      : directory_(std::move(other.directory_)),
        host_(std::move(other.host_)),
        port_(other.port_),
        child_(std::exchange(other.child_, 0)) {}
  TargetProcess& operator=(const TargetProcess&) = delete;
  ~TargetProcess() { kill(); }

  std::string address() const { return host_ + ":" + std::to_string(port_); }
  bool running() const { return child_ > 0; }

  /// Returns once it can be reached; at the same address as before.
  void start() {
    int line[2];
    ASSERT_EQ(::pipe(line), 0);
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      // Whoever has the parent's sockets keeps its connections to the other servers open.
      const int answer = ::dup2(line[1], 3);
      ::close_range(4, ~0U, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      serve(answer);
      ::_exit(1);
    }
    ::close(line[1]);
    std::uint16_t port = 0;
    const bool told = ::read(line[0], &port, sizeof port) == sizeof port;
    ::close(line[0]);
    ASSERT_TRUE(told) << "no kv-target over " << directory_;
    port_ = port;
  }

  /// kill -9; returns once it is gone.
  void kill() {
    if (child_ <= 0) return;
    EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), 0)
        << "the kv-target over " << directory_ << " ended by itself";
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }

 private:
  void serve(int answer) const {
    kv_target::FileTarget::Options options;
    options.directory = directory_;
    options.capacity_bytes = 2ULL << 30;
    options.shard_bytes = 1ULL << 20;
    options.layout.unit_bytes = 512;
    options.layout.file_bytes = 4ULL << 20;
    auto target = kv_target::FileTarget::open(std::move(options));
    if (!target) return tell(base::to_string(target.error()));
    ServerOptions server_options;
    server_options.listen = host_ + ":" + std::to_string(port_);
    (void)::getrandom(&server_options.epoch, sizeof server_options.epoch, 0);
    auto server = TargetServer::listen(**target, server_options);
    if (!server) return tell(base::to_string(server.error()));
    const std::uint16_t port = (*server)->port();
    if (::write(answer, &port, sizeof port) != sizeof port) return;
    ::close(answer);
    const std::atomic<bool> never{false};
    (*server)->serve(never);
  }
  static void tell(const std::string& why) {
    [[maybe_unused]] const auto told = ::write(STDERR_FILENO, (why + "\n").data(), why.size() + 1);
  }

  std::string directory_, host_;
  std::uint16_t port_ = 0;
  pid_t child_ = 0;
};

}  // namespace trimtab::kv_remote::testing
