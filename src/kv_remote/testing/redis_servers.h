#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv_remote/net/socket.h"

/// Real Redis servers in processes of the test, in directories that go with them.
namespace trimtab::kv_remote::testing {

inline bool redis_is_installed() {
  static const bool found = std::system("command -v redis-server >/dev/null 2>&1") == 0;
  return found;
}
inline constexpr const char* kNoRedis = "redis-server is not installed: tools/setup --test installs it";

inline std::uint16_t free_port() {
  while (true) {
    auto listener = listen_on(*resolve("127.0.0.1:0"));
    const std::uint16_t port = *port_of(listener->get());
    // A cluster node listens at port + 10000, too.
    if (port < 50'000) return port;
    // Ephemeral ports may all be above; pick below them, where hardly anybody is.
    const auto low = static_cast<std::uint16_t>(20'000 + (port * 7 + ::getpid()) % 9'000);
    if (listen_on(*resolve("127.0.0.1:" + std::to_string(low))).has_value()) return low;
  }
}

class RedisServer {
 public:
  /// `extra`: further arguments of redis-server.
  explicit RedisServer(std::vector<std::string> extra = {}) : port_(free_port()) {
    directory_ = std::filesystem::temp_directory_path() /
                 ("trimtab_redis_" + std::to_string(::getpid()) + "_" + std::to_string(port_));
    std::filesystem::create_directories(directory_);
    arguments_ = {"redis-server",
                  "--port",
                  std::to_string(port_),
                  "--bind",
                  "127.0.0.1",
                  "--dir",
                  directory_.string(),
                  "--save",
                  "",
                  "--appendonly",
                  "no",
                  "--daemonize",
                  "no"};
    arguments_.insert(arguments_.end(), extra.begin(), extra.end());
    start();
  }
  ~RedisServer() {
    kill();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  RedisServer(const RedisServer&) = delete;

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void start() {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no server behind
      const int quiet = ::open("/dev/null", O_WRONLY);
      ::dup2(quiet, 1);
      ::dup2(quiet, 2);
      std::vector<char*> words;
      for (std::string& word : arguments_) words.push_back(word.data());
      words.push_back(nullptr);
      ::execvp("redis-server", words.data());
      ::_exit(127);
    }
    if (!answers()) throw std::runtime_error("redis-server did not start");
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::uint16_t port() const { return port_; }
  pid_t pid() const { return pid_; }
  /// What redis-cli says.
  std::string cli(const std::string& words) const {
    const std::string command = "redis-cli -p " + std::to_string(port_) + " " + words + " 2>&1";
    std::string output;
    FILE* pipe = ::popen(command.c_str(), "r");
    for (char line[4'096]; ::fgets(line, sizeof line, pipe) != nullptr;) output += line;
    ::pclose(pipe);
    return output;
  }

 private:
  bool answers() const {
    for (int tries = 0; tries < 400; ++tries) {
      auto socket = begin_connect(*resolve(address()));
      if (socket) {
        pollfd ready{socket->get(), POLLOUT, 0};
        if (::poll(&ready, 1, 1'000) > 0 && socket_error(socket->get()) == 0) return true;
      }
      ::usleep(25'000);
    }
    return false;
  }

  std::uint16_t port_ = 0;
  std::filesystem::path directory_;
  std::vector<std::string> arguments_;
  pid_t pid_ = 0;
};

/// Three masters without replicas, that serve all slots.
class RedisCluster {
 public:
  explicit RedisCluster(const std::vector<std::string>& extra = {}) {
    std::vector<std::string> options = {"--cluster-enabled",
                                        "yes",
                                        "--cluster-node-timeout",
                                        "1500",
                                        "--cluster-require-full-coverage",
                                        "no"};
    options.insert(options.end(), extra.begin(), extra.end());
    std::string create = "--cluster create";
    for (int n = 0; n < 3; ++n) {
      nodes.push_back(std::make_unique<RedisServer>(options));
      create += " " + nodes.back()->address();
    }
    nodes[0]->cli(create + " --cluster-yes");
    for (int tries = 0; tries < 400 && !agreed(); ++tries) ::usleep(50'000);
    if (!agreed()) throw std::runtime_error("the cluster did not form: " + nodes[0]->cli("cluster info"));
  }
  std::vector<std::string> addresses() const {
    std::vector<std::string> list;
    for (const auto& node : nodes) list.push_back(node->address());
    return list;
  }
  std::string id_of(std::size_t node) const {
    std::string id = nodes[node]->cli("cluster myid");
    while (!id.empty() && (id.back() == '\n' || id.back() == '\r')) id.pop_back();
    return id;
  }

  std::vector<std::unique_ptr<RedisServer>> nodes;

 private:
  bool agreed() const {
    for (const auto& node : nodes) {
      const std::string info = node->cli("cluster info");
      if (info.find("cluster_state:ok") == std::string::npos ||
          info.find("cluster_slots_assigned:16384") == std::string::npos)
        return false;
    }
    return true;
  }
};

}  // namespace trimtab::kv_remote::testing
