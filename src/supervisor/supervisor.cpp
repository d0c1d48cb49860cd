#include "supervisor/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "ipc/steady_clock.h"
#include "obs/process_ends.h"
#include "supervisor/last_words.h"

namespace trimtab::supervisor {

namespace {

constexpr base::Nanos kLookEvery{2'000'000'000};  // for stopped processes: one small read of /proc for each

std::string log_path(const SupervisorOptions& options, const ProcessSpec& spec) {
  std::string file = spec.name;
  std::replace(file.begin(), file.end(), ' ', '-');
  return options.log_dir + "/" + file + ".log";
}

/// Becomes the program, in the child. Never returns.
[[noreturn]] void become(const ProcessSpec& spec, const std::string& log, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(125);  // the parent died before the request took hold
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);  // Ctrl-C reaches the supervisor alone, which ends the others in order
  if (spec.nice != 0) setpriority(PRIO_PROCESS, 0, spec.nice);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out >= 0) {
    dup2(out, 1);
    dup2(out, 2);
  }
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, 0);
  std::vector<char*> argv;
  for (const std::string& argument : spec.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  dprintf(2, "cannot run %s: %s\n", argv[0], std::strerror(errno));
  _exit(127);
}

/// Unlinks `pattern`, or, when it ends in '*', every file of its directory whose name begins so.
void remove_matching(const std::string& pattern) {
  if (!pattern.ends_with('*')) {
    unlink(pattern.c_str());
    return;
  }
  const std::filesystem::path path = pattern.substr(0, pattern.size() - 1);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), ignored)) {
    if (entry.path().filename().string().starts_with(path.filename().string())) unlink(entry.path().c_str());
  }
}

/// Whether a signal has stopped the process ('T' of /proc/PID/stat; a debugger's 't' is not that).
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // the name before it may hold anything
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'T';
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("exited with {}", WEXITSTATUS(status));
}

class Runner {
 public:
  Runner(const SupervisorOptions& options,
         const std::function<void(const std::string&, const std::string&)>& on_change)
      : options_(options), on_change_(on_change), watch_(options.plan, options.watch) {}

  base::Status run() {
    sigset_t watched;
    sigemptyset(&watched);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&watched, signal);
    sigset_t before;
    sigprocmask(SIG_BLOCK, &watched, &before);
    const int signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0)
      return base::fail(base::Code::kIo, fmt::format("signalfd: {}", std::strerror(errno)), "supervisor");
    for (const ProcessSpec& spec : options_.plan) {
      const std::string log = log_path(options_, spec);
      std::error_code ignored;
      std::filesystem::rename(log, log + ".1", ignored);
    }
    apply(watch_.start(clock_.now()));
    while (!watch_.stopped()) {
      wait_for_signal(signals);
      reap();
      look_for_stopped();
      apply(watch_.tick(clock_.now()));
    }
    close(signals);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return {};
  }

 private:
  void wait_for_signal(int signals) {
    const base::Nanos wake = std::min(watch_.next_wake(), next_look_);
    const std::int64_t left = (wake - clock_.now()).value / 1'000'000 + 1;
    const int timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
    pollfd item{signals, POLLIN, 0};
    poll(&item, 1, timeout_ms);
    signalfd_siginfo info{};
    while (read(signals, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGCHLD) apply(watch_.stop(clock_.now()));
    }
  }

  void reap() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      const auto found = process_of_.find(pid);
      if (found == process_of_.end()) continue;
      const std::size_t index = found->second;
      process_of_.erase(found);
      pids_.erase(index);
      if (watch_.wanted(index))
        ended_untold(index, status);
      else
        on_change_(options_.plan[index].name, describe_exit(status));
      apply(watch_.exited(index, clock_.now()));
    }
  }

  void ended_untold(std::size_t index, int status) {
    const ProcessSpec& spec = options_.plan[index];
    const Life& life = lives_[index];
    obs::ProcessEnd& end = ends_[index];
    end.name = spec.name;
    end.how = describe_exit(status);
    end.log = log_path(options_, spec);
    // Who is killed has no time for a word.
    end.said = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? "" : last_words(end.log, life.log_begin);
    ++end.times;
    end.in_a_row = clock_.now() - life.started < options_.watch.healthy_after ? end.in_a_row + 1 : 1;
    end.started_ns = 0;
    tell_ends();
    on_change_(spec.name, obs::how_it_ended(end));
  }

  void tell_ends() {
    if (options_.ends_dir.empty()) return;
    std::vector<obs::ProcessEnd> ends;
    for (const auto& [index, end] : ends_) ends.push_back(end);
    obs::write_process_ends(options_.ends_dir, ends);
  }

  void look_for_stopped() {
    const base::Nanos now = clock_.now();
    if (now < next_look_) return;
    next_look_ = now + std::min(kLookEvery, options_.watch.stopped_max);
    for (const auto& [index, pid] : pids_) {
      const std::vector<Action> actions = watch_.observed(index, is_stopped(pid), now);
      if (!actions.empty())
        on_change_(options_.plan[index].name, "stands still, stopped by a signal: it is ended");
      apply(actions);
    }
  }

  void apply(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      const ProcessSpec& spec = options_.plan[action.process];
      switch (action.kind) {
        case Action::Kind::kStart:
          start(action.process);
          break;
        case Action::Kind::kTerminate:
          signal(action.process, SIGTERM);
          break;
        case Action::Kind::kKill:
          signal(action.process, SIGKILL);
          break;
        case Action::Kind::kRemoveFiles:
          for (const std::string& pattern : spec.removed_before_start) remove_matching(pattern);
          break;
      }
    }
  }

  void start(std::size_t index) {
    const ProcessSpec& spec = options_.plan[index];
    const std::string log = log_path(options_, spec);
    std::error_code none_yet;
    const std::uintmax_t written = std::filesystem::file_size(log, none_yet);
    lives_[index] = {none_yet ? 0 : written, clock_.now()};
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) become(spec, log, parent);
    if (pid < 0) {
      on_change_(spec.name, fmt::format("cannot fork: {}", std::strerror(errno)));
      apply(watch_.exited(index, clock_.now()));
      return;
    }
    pids_[index] = pid;
    process_of_[pid] = index;
    if (const auto ended = ends_.find(index); ended != ends_.end()) {
      ended->second.started_ns = lives_[index].started.value;
      tell_ends();
    }
    const std::uint64_t restarts = watch_.restarts(index);
    on_change_(spec.name, restarts == 0 ? "started" : fmt::format("started again (restart {})", restarts));
  }

  void signal(std::size_t index, int number) {
    const auto found = pids_.find(index);
    if (found != pids_.end()) kill(found->second, number);
  }

  struct Life {
    std::uint64_t log_begin = 0;
    base::Nanos started{0};
  };
  const SupervisorOptions& options_;
  const std::function<void(const std::string&, const std::string&)>& on_change_;
  Watch watch_;
  ipc::SteadyClock clock_;
  base::Nanos next_look_{0};
  std::map<std::size_t, pid_t> pids_;
  std::map<pid_t, std::size_t> process_of_;
  std::map<std::size_t, Life> lives_;
  std::map<std::size_t, obs::ProcessEnd> ends_;  // of those that ended untold
};

}  // namespace

base::Status supervise(const SupervisorOptions& options,
                       const std::function<void(const std::string&, const std::string&)>& on_change) {
  std::error_code error;
  std::filesystem::create_directories(options.log_dir, error);
  if (error) {
    return base::fail(base::Code::kIo,
                      fmt::format("cannot create the log directory {}: {}", options.log_dir, error.message()),
                      "supervisor");
  }
  return Runner(options, on_change).run();
}

}  // namespace trimtab::supervisor
