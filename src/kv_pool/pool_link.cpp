#include "kv_pool/pool_link.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ipc/steady_clock.h"

namespace trimtab::kv_pool {

namespace {

// A loader that dies wakes nobody: so often a sleeper looks whether it is there.
constexpr base::Nanos kLook{10'000'000};

base::Error unavailable(std::string message) {
  return {base::Code::kUnavailable, std::move(message), "kv_pool"};
}

}  // namespace

base::Result<std::shared_ptr<PoolLink>> PoolLink::dial(const std::string& socket_path,
                                                       std::uint64_t block_bytes, base::Nanos patience,
                                                       base::Nanos timeout) {
  auto dialled = ipc::Channel::connect(socket_path, patience);
  if (!dialled) return tl::unexpected(unavailable(dialled.error().message));
  std::shared_ptr<PoolLink> link(new PoolLink(std::move(*dialled)));
  TRIMTAB_TRY(link->channel_.send(wire::to_frame(protocol::Hello{protocol::kVersion, block_bytes})));
  auto frame = link->channel_.receive(std::max(patience, timeout));
  if (!frame) return tl::unexpected(frame.error());
  if (!frame->has_value()) return tl::unexpected(unavailable("the loader does not answer on " + socket_path));
  auto welcome = wire::from_frame<protocol::Welcome>(**frame);
  if (!welcome) return tl::unexpected(welcome.error());
  if (!welcome->refusal.empty()) return base::fail(base::Code::kInvalidArgument, welcome->refusal, "kv_pool");
  const std::vector<int> descriptors = link->channel_.take_descriptors();
  if (descriptors.size() != 2) {
    for (const int fd : descriptors) close(fd);
    return tl::unexpected(unavailable("the loader passed on no memory: a build other than this one's"));
  }
  auto arena = ipc::Segment::adopt(descriptors[0]);
  auto ring_memory = ipc::Segment::adopt(descriptors[1]);
  if (!arena) return tl::unexpected(arena.error());
  if (!ring_memory) return tl::unexpected(ring_memory.error());
  auto ring = RingReader::open(std::move(*ring_memory));
  if (!ring) return tl::unexpected(ring.error());
  if (welcome->block_bytes > welcome->slot_stride || welcome->layers == 0 || welcome->slot_stride == 0 ||
      welcome->slots > arena->size() / welcome->slot_stride)
    return tl::unexpected(unavailable("the pool's arena is smaller than the loader says"));
  link->arena_ = std::move(*arena);
  link->ring_ = std::move(*ring);
  link->pool_ = std::move(*welcome);
  return link;
}

base::Result<std::span<std::byte>> PoolLink::slot(std::uint32_t number) const {
  if (number >= pool_.slots)
    return base::fail(base::Code::kInternal, fmt::format("the pool named slot {} of {}", number, pool_.slots),
                      "kv_pool");
  return arena_.bytes().subspan(number * pool_.slot_stride, pool_.block_bytes);
}

base::Status PoolLink::send(const ipc::Frame& frame) {
  const std::lock_guard lock(send_mutex_);
  return channel_.send(frame);
}

bool PoolLink::send_at_once(const ipc::Frame& frame) {
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (!lock) return false;
  const std::vector<std::byte> bytes = ipc::pack(frame);
  const ssize_t sent = ::send(channel_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent <= 0) return false;
  // Half a frame: what follows it would be read wrongly.
  if (sent != static_cast<ssize_t>(bytes.size())) fail(unavailable("the loader reads nothing"));
  return sent == static_cast<ssize_t>(bytes.size());
}

base::Status PoolLink::fail_locked(const base::Error& reason) {
  if (!failure_) {
    failure_ = unavailable(reason.message);
    channel_.shutdown();  // the loader takes back what this link holds
  }
  return tl::unexpected(*failure_);
}

void PoolLink::fail(const base::Error& reason) {
  const std::lock_guard lock(mutex_);
  [[maybe_unused]] const auto told = fail_locked(reason);
}

base::Status PoolLink::alive() const {
  const std::lock_guard lock(mutex_);
  if (failure_) return tl::unexpected(*failure_);
  return {};
}

std::uint64_t PoolLink::open_plan(News news) {
  const std::lock_guard lock(mutex_);
  plans_.emplace(++last_plan_, std::move(news));
  return last_plan_;
}

void PoolLink::close_plan(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  plans_.erase(id);
}

base::Status PoolLink::drain() {
  if (failure_) return tl::unexpected(*failure_);
  entries_.clear();
  if (auto read = ring_.read(entries_); !read) return fail_locked(read.error());
  for (const ProgressEntry& entry : entries_) {
    const auto plan = plans_.find(entry.plan);
    if (plan == plans_.end()) continue;  // given up since
    const bool has_slot = entry.outcome == FetchOutcome::kLayers || entry.outcome == FetchOutcome::kWhole;
    if (has_slot && (entry.slot >= pool_.slots || entry.layers > pool_.layers || entry.layers == 0))
      return fail_locked(unavailable(fmt::format("the loader speaks of slot {} of {} with {} layers of {}",
                                                 entry.slot, pool_.slots, entry.layers, pool_.layers)));
    plan->second(entry);
  }
  return {};
}

base::Status PoolLink::wait_until(const std::function<bool()>& look, base::Nanos wait) {
  const ipc::SteadyClock clock;
  const base::Nanos end = wait >= base::kForever - clock.now() ? base::kForever : clock.now() + wait;
  while (true) {
    const std::uint32_t ticket = ring_.ticket();
    {
      const std::lock_guard lock(mutex_);
      TRIMTAB_TRY(drain());
      if (look()) return {};
      if (channel_.peer_gone()) {
        TRIMTAB_TRY(drain());  // what it said before its end
        return fail_locked(unavailable("the loader is gone"));
      }
    }
    const base::Nanos left = end - clock.now();
    if (left.value <= 0) return {};
    ring_.sleep(ticket, std::min(left, kLook));
  }
}

}  // namespace trimtab::kv_pool
