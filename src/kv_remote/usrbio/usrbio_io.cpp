#include "kv_remote/usrbio/usrbio_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace trimtab::kv_remote {

using usrbio::Cqe;

UsrbioIo::UsrbioIo(UsrbioOptions options, const usrbio::Api& api)
    : options_(std::move(options)), api_(api), parts_(options_.slots), event_fd_(options_.event_fd) {
  for (std::uint32_t slot = options_.slots; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

base::Result<std::unique_ptr<UsrbioIo>> UsrbioIo::open(UsrbioOptions options, const usrbio::Api& api) {
  if (options.entries == 0 || options.slots == 0 || options.slot_bytes == 0) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("USRBIO with {} entries and {} slots of {} bytes: all must be at least 1",
                                  options.entries, options.slots, options.slot_bytes),
                      "kv_remote");
  }
  std::unique_ptr<UsrbioIo> io(new UsrbioIo(std::move(options), api));
  TRIMTAB_TRY(io->start_rings());
  return io;
}

base::Status UsrbioIo::start_rings() {
  const auto refused = [this](const char* what, int code) {
    return base::fail(base::Code::kUnavailable,
                      fmt::format("3FS at {} gives no {}: {}; is it mounted there, and its client running?",
                                  options_.mount_point, what, std::strerror(-code)),
                      "kv_remote");
  };
  const char* mount = options_.mount_point.c_str();
  // One block of memory: no request may span two.
  if (const int code = api_.iovcreate(&iov_, mount, options_.slots * options_.slot_bytes, 0, options_.numa);
      code != 0)
    return refused("shared memory", code);
  iov_made_ = true;
  for (const bool reads : {false, true}) {
    Ring& ring = rings_[reads ? 1 : 0];
    // Depth 0: what is prepared is done as soon as the client sees it.
    if (const int code = api_.iorcreate4(&ring.ior, mount, static_cast<int>(options_.entries), reads, 0, 0,
                                         options_.numa, 0);
        code != 0)
      return refused("ring", code);
    ring.made = true;
    ring.waiter = std::thread([this, &ring] { await(ring); });
  }
  return {};
}

UsrbioIo::~UsrbioIo() {
  std::vector<Done> ignored;
  while (jobs_ > 0) {
    start();
    wait();
    reap(ignored);
  }
  ending_ = true;
  for (Ring& ring : rings_) {
    ring.prepared.release();
    if (ring.waiter.joinable()) ring.waiter.join();
  }
  for (const int fd : files_) api_.dereg_fd(fd);
  for (Ring& ring : rings_)
    if (ring.made) api_.iordestroy(&ring.ior);
  if (iov_made_) api_.iovdestroy(&iov_);
}

base::Status UsrbioIo::register_file(int fd) {
  if (files_.contains(fd)) return {};
  if (const int code = api_.reg_fd(fd, 0); code > 0) {
    return base::fail(base::Code::kUnavailable,
                      fmt::format("3FS does not know file descriptor {}: {}; does the file lie under {}?", fd,
                                  std::strerror(code), options_.mount_point),
                      "kv_remote");
  }
  files_.insert(fd);
  return {};
}

void UsrbioIo::deregister_file(int fd) {
  if (files_.erase(fd) > 0) api_.dereg_fd(fd);
}

void UsrbioIo::add(const Job& job) {
  auto whole = std::make_shared<Whole>();
  whole->job = job;
  whole->end = job.bytes;
  added_.push_back(std::move(whole));
  ++jobs_;
}

/// False when ring or slots are full: later.
bool UsrbioIo::prepare(Part part) {
  Whole& whole = *part.whole;
  Ring& ring = rings_[whole.job.read ? 1 : 0];
  if (free_slots_.empty() || ring.in_ring >= options_.entries) return false;
  part.slot = free_slots_.back();
  std::uint8_t* memory = iov_.base + part.slot * options_.slot_bytes;
  if (!whole.job.read) std::memcpy(memory, whole.job.memory + part.at, part.bytes);
  const auto* mark = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(part.slot));
  int code = -ring.broken.load();
  if (code == 0) {
    code = api_.prep_io(&ring.ior, &iov_, whole.job.read, memory, whole.job.fd, whole.job.offset + part.at,
                        part.bytes, mark);
  }
  if (code < 0) {
    settle(std::move(part), code);
    return true;
  }
  free_slots_.pop_back();
  parts_[part.slot] = std::move(part);
  ++ring.in_ring;
  ring.prepared.release();
  return true;
}

void UsrbioIo::start() {
  const std::uint32_t before[2] = {rings_[0].in_ring, rings_[1].in_ring};
  const std::size_t done_before = done_.size();
  bool room = true;
  while (room && !again_.empty()) {
    room = prepare(again_.front());
    if (room) again_.pop_front();
  }
  while (room && !added_.empty()) {
    const std::shared_ptr<Whole> whole = added_.front();
    if (whole->next >= whole->job.bytes || whole->error != 0) {
      added_.pop_front();
      finish_if_done(whole);
      continue;
    }
    const std::uint64_t bytes = std::min(options_.slot_bytes, whole->job.bytes - whole->next);
    ++whole->parts;
    room = prepare({whole, whole->next, bytes, 0});
    if (room)
      whole->next += bytes;
    else
      --whole->parts;
  }
  for (int i = 0; i < 2; ++i)
    if (rings_[i].in_ring > before[i]) (void)api_.submit_ios(&rings_[i].ior);  // a hint: see its description
  if (done_.size() > done_before) signal();                                    // what ended without any ring
}

void UsrbioIo::await(Ring& ring) {
  std::array<Cqe, 64> cqes;
  while (true) {
    ring.prepared.acquire();
    if (ending_) return;
    int count = 0;
    do {
      count = api_.wait_for_ios(&ring.ior, cqes.data(), static_cast<int>(cqes.size()), 1, nullptr);
    } while (count == 0 || count == -EINTR || count == -ETIMEDOUT || count == -EAGAIN);
    if (count < 0) {
      ring.broken = -count;
      signal();
      return;
    }
    // One was awaited; the others that came with it need no waiting any more.
    for (int i = 1; i < count; ++i) ring.prepared.acquire();
    {
      const std::lock_guard lock(mutex_);
      completed_.insert(completed_.end(), cqes.begin(), cqes.begin() + count);
    }
    signal();
  }
}

void UsrbioIo::signal() {
  news_.release();
  const std::uint64_t one = 1;
  if (const int fd = event_fd_; fd >= 0) (void)!::write(fd, &one, sizeof one);
}

void UsrbioIo::arrived(std::uint32_t slot, std::int64_t result) {
  Part part = std::move(parts_[slot]);
  parts_[slot] = {};
  const Whole& whole = *part.whole;
  --rings_[whole.job.read ? 1 : 0].in_ring;
  if (whole.job.read && result > 0)
    std::memcpy(
        whole.job.memory + part.at, iov_.base + slot * options_.slot_bytes,
        static_cast<std::size_t>(std::min<std::int64_t>(result, static_cast<std::int64_t>(part.bytes))));
  free_slots_.push_back(slot);
  settle(std::move(part), result);
}

/// What one request's result means for its job.
void UsrbioIo::settle(Part part, std::int64_t result) {
  const std::shared_ptr<Whole> whole = part.whole;
  if (result < 0 || (result == 0 && !whole->job.read)) {
    if (whole->error == 0) whole->error = result < 0 ? result : -EIO;
  } else if (result == 0) {
    whole->end = std::min(whole->end, part.at);
  } else if (static_cast<std::uint64_t>(result) < part.bytes) {
    part.at += static_cast<std::uint64_t>(result);
    part.bytes -= static_cast<std::uint64_t>(result);
    again_.push_back(std::move(part));
    return;
  }
  --whole->parts;
  finish_if_done(whole);
}

void UsrbioIo::finish_if_done(const std::shared_ptr<Whole>& whole) {
  const bool begun_wholly = whole->next >= whole->job.bytes || whole->error != 0;
  if (whole->parts > 0 || !begun_wholly || (!added_.empty() && added_.front() == whole)) return;
  done_.push_back(
      {whole->job.token, whole->error != 0 ? whole->error : static_cast<std::int64_t>(whole->end)});
}

/// A ring that cannot be waited for gives nothing back: its jobs fail, and its slots are not used again,
/// since the 3FS client may still write into them.
void UsrbioIo::fail_broken() {
  for (std::uint32_t slot = 0; slot < parts_.size(); ++slot) {
    const auto& whole = parts_[slot].whole;
    if (!whole) continue;
    Ring& ring = rings_[whole->job.read ? 1 : 0];
    if (ring.broken == 0) continue;
    Part part = std::move(parts_[slot]);
    parts_[slot] = {};
    --ring.in_ring;
    settle(std::move(part), -ring.broken);
  }
}

void UsrbioIo::reap(std::vector<Done>& done) {
  while (news_.try_acquire()) {
  }
  std::vector<Cqe> completed;
  {
    const std::lock_guard lock(mutex_);
    completed.swap(completed_);
  }
  for (const Cqe& cqe : completed)
    arrived(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(cqe.userdata)), cqe.result);
  if (rings_[0].broken != 0 || rings_[1].broken != 0) fail_broken();
  start();
  jobs_ -= done_.size();
  done.insert(done.end(), done_.begin(), done_.end());
  done_.clear();
}

bool UsrbioIo::has_news() {
  const auto stuck = [](const Ring& ring) { return ring.broken != 0 && ring.in_ring > 0; };
  if (!done_.empty() || stuck(rings_[0]) || stuck(rings_[1])) return true;
  const std::lock_guard lock(mutex_);
  return !completed_.empty();
}

void UsrbioIo::wait() {
  TRIMTAB_CHECK(jobs_ > 0, "nothing is under way");
  start();
  while (!has_news()) news_.acquire();
}

}  // namespace trimtab::kv_remote
