#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/channel.h"
#include "ipc/segment.h"
#include "kv_pool/progress_ring.h"
#include "kv_pool/protocol.h"

namespace trimtab::kv_pool {

/// One connection to a loader, with the arena and the ring that came with it. A client that loses its loader
/// drops the link; tickets hold on to theirs, which says that it is over, and to the old arena's memory,
/// which nobody writes any more.
class PoolLink {
 public:
  /// Dials, says hello, and maps what comes with the answer. kUnavailable: no loader; kInvalidArgument: it
  /// refuses this user.
  static base::Result<std::shared_ptr<PoolLink>> dial(const std::string& socket_path,
                                                      std::uint64_t block_bytes, base::Nanos patience,
                                                      base::Nanos timeout);

  const protocol::Welcome& pool() const { return pool_; }
  /// kInternal: a slot that the arena does not have.
  base::Result<std::span<std::byte>> slot(std::uint32_t number) const;

  base::Status send(const ipc::Frame& frame);
  /// False: there was no room for it at once, and it is dropped. Of small frames.
  bool send_at_once(const ipc::Frame& frame);
  /// Of one thread at a time.
  base::Result<std::optional<ipc::Frame>> receive(base::Nanos timeout) { return channel_.receive(timeout); }

  /// From now on everything fails with this.
  void fail(const base::Error& reason);
  base::Status alive() const;
  /// The loader has hung up; what it said before may still be read.
  bool peer_gone() const { return channel_.peer_gone(); }

  /// News of plan `id` go to `news`, under the link's lock; the number is new.
  using News = std::function<void(const ProgressEntry&)>;
  std::uint64_t open_plan(News news);
  void close_plan(std::uint64_t id);
  /// Runs `look` under the lock, again whenever there are news, until it is true, `wait` has passed or the
  /// link has failed (the error). `look` may run more often.
  base::Status wait_until(const std::function<bool()>& look, base::Nanos wait);
  /// The lock under which `news` and `look` run.
  std::mutex& mutex() const { return mutex_; }

 private:
  explicit PoolLink(ipc::Channel channel) : channel_(std::move(channel)) {}
  base::Status drain();  // under the lock
  base::Status fail_locked(const base::Error& reason);

  ipc::Channel channel_;
  ipc::Segment arena_;
  protocol::Welcome pool_;
  std::mutex send_mutex_;
  mutable std::mutex mutex_;
  RingReader ring_;
  std::vector<ProgressEntry> entries_;
  std::map<std::uint64_t, News> plans_;
  std::uint64_t last_plan_ = 0;
  std::optional<base::Error> failure_;
};

}  // namespace trimtab::kv_pool
