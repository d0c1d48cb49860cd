#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "obs/process_ends.h"

namespace trimtab::supervisor {

/// One process of the plan. Processes of the same group live and die together: the ranks of a DP group cannot
/// go on without one another (every layer is a collective), so when one dies the others are stopped and the
/// whole group starts again.
struct ProcessSpec {
  std::string name;                    // "prefill 0.1"; also the log file's name
  std::string group;                   // "prefill 0"
  std::vector<std::string> arguments;  // argv, program first
  std::vector<std::string>
      removed_before_start;  // files a dead group leaves behind; a final * matches any ending
  int nice = 0;
  int stop_stage =
      0;  // an orderly stop ends stage after stage: who serves clients before whom they serve with
  base::Nanos drains{0};  // how long its own orderly stop may take, before `kill_after` begins to count
};

struct WatchConfig {
  base::Nanos backoff_first{200'000'000};  // before a group's first restart; doubles with each further one
  base::Nanos backoff_max{10'000'000'000};
  base::Nanos healthy_after =
      obs::kHealthyAfter;                   // a group that ran this long starts over with the first backoff
  base::Nanos kill_after{5'000'000'000};    // SIGKILL follows SIGTERM
  base::Nanos stopped_max{10'000'000'000};  // a process that stands still (SIGSTOP) this long is ended
};

struct Action {
  enum class Kind : std::uint8_t { kStart, kTerminate, kKill, kRemoveFiles } kind = Kind::kStart;
  std::size_t process = 0;  // index into the plan
  auto operator<=>(const Action&) const = default;
};

/// Decides what to start, stop and restart. Pure: the host forks, signals and reaps, and tells what happened.
/// Cost: O(processes) per event. Weakness: a group that can never start is retried for ever (at
/// `backoff_max`), loudly logged, rather than given up: an operator who mends the cause should not have to
/// restart the rest.
class Watch {
 public:
  Watch(std::vector<ProcessSpec> plan, WatchConfig config);

  std::vector<Action> start(base::Nanos now);
  /// Process `index` ended (whatever the reason).
  std::vector<Action> exited(std::size_t index, base::Nanos now);
  /// What the host sees of process `index` now and then: whether a signal has stopped it. A stopped process
  /// keeps its connections open and answers nothing, so its clients would wait for their whole timeout; after
  /// `stopped_max` it counts as dead. One that a debugger holds is not stopped in this sense.
  std::vector<Action> observed(std::size_t index, bool stopped, base::Nanos now);
  /// To be called when `next_wake` has come.
  std::vector<Action> tick(base::Nanos now);
  /// Ends everything, stage after stage; `stopped` turns true once all have exited. A second call (an
  /// impatient Ctrl-C) ends all stages at once.
  std::vector<Action> stop(base::Nanos now);

  base::Nanos next_wake() const;
  bool stopped() const;
  /// It is to run: whatever ends it now was not this watch.
  bool wanted(std::size_t index) const;
  std::uint64_t restarts(std::size_t index) const;
  const std::vector<ProcessSpec>& plan() const { return plan_; }

 private:
  enum class Phase : std::uint8_t { kRunning, kDraining, kWaiting, kStopped };
  struct Group {
    std::vector<std::size_t> members;
    Phase phase = Phase::kStopped;
    base::Nanos started{0};
    base::Nanos wake = base::kForever;  // kDraining: when to kill; kWaiting: when to start
    base::Nanos backoff{0};
    std::uint64_t restarts = 0;
  };

  void start_group(Group& group, base::Nanos now, std::vector<Action>& out);
  void drain_group(Group& group, base::Nanos now, std::vector<Action>& out);
  void stop_stage(base::Nanos now, std::vector<Action>& out);
  bool any_alive(const Group& group) const;

  std::vector<ProcessSpec> plan_;
  WatchConfig config_;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;
  std::vector<bool> alive_;
  std::vector<base::Nanos> stopped_since_;  // kForever: it runs
  bool stopping_ = false;
  bool hurried_ = false;  // stopped twice
};

}  // namespace trimtab::supervisor
