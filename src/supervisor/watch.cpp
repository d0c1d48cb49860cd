#include "supervisor/watch.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace trimtab::supervisor {

Watch::Watch(std::vector<ProcessSpec> plan, WatchConfig config)
    : plan_(std::move(plan)),
      config_(config),
      group_of_(plan_.size()),
      alive_(plan_.size(), false),
      stopped_since_(plan_.size(), base::kForever) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    const auto found = std::find(names.begin(), names.end(), plan_[i].group);
    group_of_[i] = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(plan_[i].group);
      groups_.emplace_back();
      groups_.back().backoff = config_.backoff_first;
    }
    groups_[group_of_[i]].members.push_back(i);
  }
}

void Watch::start_group(Group& group, base::Nanos now, std::vector<Action>& out) {
  for (const std::size_t member : group.members) out.push_back({Action::Kind::kRemoveFiles, member});
  for (const std::size_t member : group.members) {
    out.push_back({Action::Kind::kStart, member});
    alive_[member] = true;
  }
  group.phase = Phase::kRunning;
  group.started = now;
  group.wake = base::kForever;
}

void Watch::drain_group(Group& group, base::Nanos now, std::vector<Action>& out) {
  for (const std::size_t member : group.members) {
    if (alive_[member]) out.push_back({Action::Kind::kTerminate, member});
  }
  group.phase = Phase::kDraining;
  group.wake = now + config_.kill_after;
  if (stopping_ && !hurried_) {
    base::Nanos drains{0};
    for (const std::size_t member : group.members) drains = std::max(drains, plan_[member].drains);
    group.wake += drains;
  }
}

bool Watch::any_alive(const Group& group) const {
  return std::any_of(group.members.begin(), group.members.end(),
                     [&](std::size_t member) { return alive_[member]; });
}

std::vector<Action> Watch::start(base::Nanos now) {
  std::vector<Action> out;
  for (Group& group : groups_) start_group(group, now, out);
  return out;
}

std::vector<Action> Watch::exited(std::size_t index, base::Nanos now) {
  TRIMTAB_CHECK(index < plan_.size());
  std::vector<Action> out;
  Group& group = groups_[group_of_[index]];
  alive_[index] = false;
  stopped_since_[index] = base::kForever;
  if (group.phase == Phase::kRunning) {
    if (now - group.started >= config_.healthy_after) group.backoff = config_.backoff_first;
    drain_group(group, now, out);
  }
  if (any_alive(group)) return out;
  if (stopping_) {
    stop_stage(now, out);
    return out;
  }
  group.phase = Phase::kWaiting;
  group.wake = now + group.backoff;
  group.backoff = std::min(group.backoff * 2, config_.backoff_max);
  ++group.restarts;
  return out;
}

std::vector<Action> Watch::observed(std::size_t index, bool stopped, base::Nanos now) {
  TRIMTAB_CHECK(index < plan_.size());
  base::Nanos& since = stopped_since_[index];
  if (!stopped || !alive_[index]) {
    since = base::kForever;
    return {};
  }
  since = std::min(since, now);
  if (now - since < config_.stopped_max) return {};
  return {{Action::Kind::kKill, index}};  // SIGTERM would wait until it runs again
}

std::vector<Action> Watch::tick(base::Nanos now) {
  std::vector<Action> out;
  for (Group& group : groups_) {
    if (group.wake > now) continue;
    if (group.phase == Phase::kWaiting) {
      start_group(group, now, out);
    } else if (group.phase == Phase::kDraining) {
      for (const std::size_t member : group.members) {
        if (alive_[member]) out.push_back({Action::Kind::kKill, member});
      }
      group.wake = now + config_.kill_after;
    }
  }
  return out;
}

std::vector<Action> Watch::stop(base::Nanos now) {
  std::vector<Action> out;
  hurried_ = stopping_;
  stopping_ = true;
  stop_stage(now, out);
  return out;
}

void Watch::stop_stage(base::Nanos now, std::vector<Action>& out) {
  const auto stage_of = [&](const Group& group) { return plan_[group.members.front()].stop_stage; };
  int stage = std::numeric_limits<int>::max();
  for (const Group& group : groups_) {
    if (any_alive(group)) stage = std::min(stage, stage_of(group));
  }
  for (Group& group : groups_) {
    if (!any_alive(group)) {
      group.phase = Phase::kStopped;
      group.wake = base::kForever;
    } else if (hurried_ || (stage_of(group) == stage && group.phase != Phase::kDraining)) {
      drain_group(group, now, out);
    }
  }
}

base::Nanos Watch::next_wake() const {
  base::Nanos wake = base::kForever;
  for (const Group& group : groups_) wake = std::min(wake, group.wake);
  return wake;
}

bool Watch::stopped() const {
  return stopping_ &&
         std::none_of(groups_.begin(), groups_.end(), [&](const Group& group) { return any_alive(group); });
}

bool Watch::wanted(std::size_t index) const {
  return !stopping_ && groups_[group_of_[index]].phase == Phase::kRunning;
}

std::uint64_t Watch::restarts(std::size_t index) const { return groups_[group_of_[index]].restarts; }

}  // namespace trimtab::supervisor
