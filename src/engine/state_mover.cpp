#include "engine/state_mover.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ipc/steady_clock.h"
#include "kv_state/state_host.h"

namespace trimtab::engine {

StateMover::StateMover(const StateArena& arena, StateMoverOptions options,
                       std::function<void(StateDone)> on_done)
    : arena_(arena), options_(std::move(options)), on_done_(std::move(on_done)), thread_([this] { run(); }) {}

StateMover::~StateMover() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StateMover::submit(StateJob job) {
  {
    const std::lock_guard lock(mutex_);
    auto& queue = queues_.of(job.kind);
    if (job.kind == StateJob::Kind::kKeep && queue.size() >= options_.keeps_waiting_max) queue.pop_front();
    queue.push_back(std::move(job));
  }
  changed_.notify_all();
}

void StateMover::run() {
  while (true) {
    StateDone done;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queues_.empty(); });
      if (stopping_) return;
      done.job = queues_.take();
    }
    if (done.job.kind == StateJob::Kind::kKeep) {
      keep(done.job);
      continue;
    }
    done.status = done.job.kind == StateJob::Kind::kHandOver ? hand_over(done.job) : restore(done.job);
    on_done_(std::move(done));
  }
}

base::Status StateMover::hand_over(const StateJob& job) {
  auto found = targets_.find(job.target);
  const std::string path = StateArena::path_beside(job.segment);
  if (found == targets_.end() || found->second.path() != path) {
    auto opened = StateArena::open(path, options_.ring);
    if (!opened) {
      return base::fail(
          base::Code::kUnavailable,
          fmt::format("decode rank {} is gone: {}", model::to_string(job.target), opened.error().message),
          "engine");
    }
    found = targets_.insert_or_assign(job.target, std::move(*opened)).first;
  }
  if (job.target_slot >= found->second.slots()) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("state slot {} of decode rank {}, which has {}", job.target_slot,
                                  model::to_string(job.target), found->second.slots()),
                      "engine");
  }
  const auto from = arena_.slot(job.slot);
  std::memcpy(found->second.slot(job.target_slot).data(), from.data(), from.size());
  return {};
}

base::Status StateMover::restore(StateJob& job) {
  // The own machine's memory is the nearest; among others the order is the directory's.
  std::stable_partition(job.holders.begin(), job.holders.end(),
                        [&](const wire::StateHolder& one) { return one.machine == options_.machine; });
  std::vector<std::byte> content(
      static_cast<std::size_t>(kv::snapshot_bytes(options_.ring, job.name.position).value));
  base::Status status = base::fail(base::Code::kNotFound, "nobody holds the state", "engine");
  for (const wire::StateHolder& holder : job.holders) {
    status =
        client_.fetch({holder.host, holder.port}, holder.epoch, job.name, content, options_.fetch_timeout);
    if (!status) continue;
    kv::copy_window_in(options_.ring, content, job.name.position, arena_.ring(job.slot));
    break;
  }
  return status;
}

void StateMover::keep(const StateJob& job) {
  // A process may stand still for as long as it likes (stopped, swapped out), and hand-overs wait behind
  // this: one that has not read what an earlier job sent is not waited for again.
  if (store_ && !send_rest(base::Nanos{0})) drop_store();
  if (store_ && sent_ < message_.size()) return;
  for (int tries = 0; tries < 2; ++tries) {
    if (!store_) {
      auto channel = ipc::Channel::connect(options_.keep_socket, base::Nanos{0});
      if (!channel) return;  // the store is away: the state is simply not kept
      store_.emplace(std::move(*channel));
    }
    message_ = kv_state::keep_message(job.name, job.content);
    sent_ = 0;
    if (send_rest(options_.keep_patience)) return;
    drop_store();  // it was restarted since
  }
}

void StateMover::drop_store() {
  store_.reset();
  message_.clear();
  sent_ = 0;
}

bool StateMover::send_rest(base::Nanos patience) {
  const ipc::SteadyClock clock;
  const base::Nanos end = clock.now() + patience;
  while (sent_ < message_.size()) {
    const ssize_t n =
        ::send(store_->fd(), message_.data() + sent_, message_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent_ += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    const base::Nanos left = end - clock.now();
    if (left <= base::Nanos{0}) return true;
    pollfd item{store_->fd(), POLLOUT, 0};
    poll(&item, 1, static_cast<int>(left.value / 1'000'000) + 1);
  }
  return true;
}

}  // namespace trimtab::engine
