#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>

#include "kv_pool/loader.h"

namespace trimtab::kv_pool::test {

/// A loader in a process of its own, as tests and benches need it to be killed, stopped and restarted.
class LoaderProcess {
 public:
  explicit LoaderProcess(LoaderOptions options) : options_(std::move(options)) { start(); }
  LoaderProcess(const LoaderProcess&) = delete;
  LoaderProcess& operator=(const LoaderProcess&) = delete;
  ~LoaderProcess() { end(SIGTERM); }

  void start() {
    pid_ = fork();
    if (pid_ != 0) return;
    static std::atomic<bool> stop{false};
    std::signal(SIGTERM, [](int) { stop = true; });
    const auto served = run_loader(options_, stop);
    if (!served) std::fprintf(stderr, "%s\n", base::to_string(served.error()).c_str());
    _exit(served ? 0 : 1);
  }
  /// Ends it with `signal`; its exit status (-1 when the signal ended it).
  int end(int signal) {
    if (pid_ <= 0) return -1;
    ::kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  pid_t pid() const { return pid_; }

 private:
  LoaderOptions options_;
  pid_t pid_ = 0;
};

}  // namespace trimtab::kv_pool::test
