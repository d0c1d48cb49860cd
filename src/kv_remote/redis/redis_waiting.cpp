#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

#include "kv_remote/redis/redis_target.h"

/// Time: deadlines, pauses, and what makes the descriptor of the target readable.
namespace trimtab::kv_remote {

using kv_target::Outcome;

void RedisTarget::expire(base::Nanos now) {
  if (now < earliest_) return;
  std::vector<std::uint64_t> late;
  earliest_ = base::kForever;
  for (const auto& [id, work] : works_) {
    if (work.deadline <= now)
      late.push_back(id);
    else
      earliest_ = std::min(earliest_, work.deadline);
  }
  for (const std::uint64_t id : late) {
    const auto found = works_.find(id);
    if (found == works_.end()) continue;  // failed with another one's connection
    ++stats_.timeouts;
    if (found->second.sent) {
      // What was sent may still be read from the caller's memory, or answered: the connection ends first.
      const std::string name = found->second.node;
      Node& there = node(name);
      there.link.close("does not answer in time", now);
      broken(name, there);
    } else {
      finish(id, {0, Outcome::kFailed, 0});
    }
  }
}

void RedisTarget::resume(base::Nanos now) {
  while (!paused_.empty() && paused_.begin()->first <= now) {
    const std::uint64_t id = paused_.begin()->second;
    paused_.erase(paused_.begin());
    launch(id);
  }
}

/// Nobody knows where anything is, and nobody can be asked at present.
void RedisTarget::give_up_unplaced() {
  while (!unplaced_.empty()) finish(std::uint64_t{unplaced_.front()}, {0, Outcome::kFailed, 0});
}

void RedisTarget::arm() {
  base::Nanos wanted = done_.empty() ? earliest_ : base::Nanos{1};
  if (works_.empty() && done_.empty()) wanted = base::kForever;
  if (!paused_.empty()) wanted = std::min(wanted, paused_.begin()->first);
  if (map_wanted_ && map_work_ == 0 && !works_.empty()) wanted = std::min(wanted, map_not_before_);
  for (const auto& [name, there] : nodes_) {
    if (there->link.state() == RedisNode::State::kConnecting)
      wanted = std::min(wanted, steady_now() + options_.connect_timeout);
  }
  const bool expired = armed_ <= steady_now();
  if (!expired && armed_ <= wanted) return;
  armed_ = wanted;
  set_timer(timer_, wanted);
}

void RedisTarget::watch() {
  for (const auto& [name, there] : nodes_) {
    RedisNode& link = there->link;
    if (link.state() == RedisNode::State::kDown) continue;
    const bool writes = link.state() == RedisNode::State::kConnecting || link.blocked();
    const std::uint32_t wanted = EPOLLIN | (writes ? EPOLLOUT : 0U);
    if (wanted == link.watched) continue;
    epoll_event event{wanted, {.u64 = 1}};
    ::epoll_ctl(poller_.get(), link.watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, link.fd(), &event);
    link.watched = wanted;
  }
}

void RedisTarget::wait(base::Nanos until) {
  // Completions that lie here for the caller would end every wait at once; the timer is set without them.
  std::vector<kv_target::Completion> kept;
  kept.swap(done_);
  arm();
  const base::Nanos left = until - steady_now();
  pollfd ready{poller_.get(), POLLIN, 0};
  ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>((left.value + 999'999) / 1'000'000, 0, 50)));
  pump();
  done_.insert(done_.begin(), kept.begin(), kept.end());
}

RedisStats RedisTarget::stats() const {
  RedisStats stats = stats_;
  for (const auto& [name, there] : nodes_) stats.connects += there->link.connects();
  return stats;
}

}  // namespace trimtab::kv_remote
