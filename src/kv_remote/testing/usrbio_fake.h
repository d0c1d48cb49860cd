#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "kv_remote/usrbio/usrbio_api.h"

/// 3FS's client as far as USRBIO shows it: really reads and writes the files, on a thread of each ring, in
/// any order, sometimes before it is asked to (submit is a hint); checks what the interface demands of its
/// users.
namespace trimtab::kv_remote::usrbio {

class Fake {
 public:
  // What goes wrong, of a hundred requests.
  std::atomic<int> short_percent{0}, error_percent{0};
  std::atomic<int> fail_create{0};  // errno
  std::atomic<int> fail_wait{0};    // errno
  std::atomic<std::uint64_t> requests{0}, shorts{0}, errors{0}, misuses{0};
  std::atomic<int> rings_alive{0}, iovs_alive{0};
  std::size_t files_registered() {
    const std::lock_guard lock(mutex_);
    return files_.size();
  }

  static Fake& the() {
    static Fake fake;
    return fake;
  }
  void reset() {
    short_percent = error_percent = fail_create = fail_wait = 0;
    requests = shorts = errors = misuses = 0;
  }

  static const Api& api() {
    static constexpr Api functions = {iovcreate, iovdestroy, iorcreate4, iordestroy,  reg_fd,
                                      dereg_fd,  prep_io,    submit_ios, wait_for_ios};
    return functions;
  }

 private:
  struct Io {
    void* memory;
    int fd;
    std::size_t offset;
    std::uint64_t length;
    const void* userdata;
    int index;
  };
  struct Ring {
    bool for_read = false;
    std::size_t entries = 0;
    std::mutex mutex;
    std::condition_variable todo, finished;
    std::vector<Io> prepared;
    std::deque<Cqe> completed;
    std::size_t unreaped = 0;
    bool ending = false;
    base::Prng prng{77};
    std::thread worker;
  };

  static int iovcreate(Iov* iov, const char* mount, std::size_t size, std::size_t block_size, int numa) {
    if (const int code = the().fail_create) return -code;
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return -errno;
    *iov = {};
    iov->base = static_cast<std::uint8_t*>(memory);
    std::strncpy(iov->mount_point, mount, sizeof iov->mount_point - 1);
    iov->size = size;
    iov->block_size = block_size;
    iov->numa = numa;
    ++the().iovs_alive;
    return 0;
  }
  static void iovdestroy(Iov* iov) {
    ::munmap(iov->base, iov->size);
    --the().iovs_alive;
  }
  static int iorcreate4(Ior* ior, const char* mount, int entries, bool for_read, int io_depth, int timeout,
                        int numa, std::uint64_t flags) {
    *ior = {};
    std::strncpy(ior->mount_point, mount, sizeof ior->mount_point - 1);
    ior->for_read = for_read;
    ior->io_depth = io_depth;
    ior->timeout = timeout;
    ior->iov.numa = numa;
    ior->flags = flags;
    auto ring = std::make_unique<Ring>();
    ring->for_read = for_read;
    ring->entries = static_cast<std::size_t>(entries);
    ring->worker = std::thread([r = ring.get()] { work(*r); });
    ior->handle = ring.release();
    ++the().rings_alive;
    return 0;
  }
  static void iordestroy(Ior* ior) {
    const std::unique_ptr<Ring> ring(static_cast<Ring*>(ior->handle));
    {
      const std::lock_guard lock(ring->mutex);
      ring->ending = true;
    }
    ring->todo.notify_all();
    ring->worker.join();
    --the().rings_alive;
  }
  static int reg_fd(int fd, std::uint64_t) {
    const std::lock_guard lock(the().mutex_);
    if (::lseek(fd, 0, SEEK_CUR) < 0) return EBADF;
    return the().files_.insert(fd).second ? -fd : EINVAL;
  }
  static void dereg_fd(int fd) {
    const std::lock_guard lock(the().mutex_);
    the().files_.erase(fd);
  }
  static int prep_io(const Ior* ior, const Iov* iov, bool read, void* memory, int fd, std::size_t offset,
                     std::uint64_t length, const void* userdata) {
    Ring& ring = *static_cast<Ring*>(ior->handle);
    const auto* begin = static_cast<std::uint8_t*>(memory);
    const bool inside = begin >= iov->base && begin + length <= iov->base + iov->size;
    {
      const std::lock_guard lock(the().mutex_);
      if (!the().files_.contains(fd)) return ++the().misuses, -EBADF;
    }
    if (!inside || length == 0 || read != ring.for_read) return ++the().misuses, -EINVAL;
    const std::lock_guard lock(ring.mutex);
    if (ring.unreaped >= ring.entries) return ++the().misuses, -EAGAIN;
    const int index = static_cast<int>(ring.unreaped++);
    ring.prepared.push_back({memory, fd, offset, length, userdata, index});
    ++the().requests;
    if (ring.prng.below(2) == 0) ring.todo.notify_one();  // seen before it was submitted
    return index;
  }
  static int submit_ios(const Ior* ior) {
    static_cast<Ring*>(ior->handle)->todo.notify_one();
    return 0;
  }
  static int wait_for_ios(const Ior* ior, Cqe* cqes, int count, int min_results, const timespec* until) {
    if (const int code = the().fail_wait) return -code;
    Ring& ring = *static_cast<Ring*>(ior->handle);
    std::unique_lock lock(ring.mutex);
    const auto enough = [&] { return ring.completed.size() >= static_cast<std::size_t>(min_results); };
    if (until == nullptr) ring.finished.wait(lock, enough);
    int given = 0;
    for (; given < count && !ring.completed.empty(); ++given) {
      cqes[given] = ring.completed.front();
      ring.completed.pop_front();
      --ring.unreaped;
    }
    return given;
  }

  static std::int64_t carry_out(Ring& ring, const Io& io, std::uint64_t dice, std::uint64_t cut) {
    if (dice < static_cast<std::uint64_t>(the().error_percent.load())) return ++the().errors, -EIO;
    std::uint64_t length = io.length;
    if (length > 1 && dice % 100 < static_cast<std::uint64_t>(the().short_percent.load())) {
      length = 1 + cut % (length - 1);
      ++the().shorts;
    }
    const auto offset = static_cast<off_t>(io.offset);
    const ssize_t moved = ring.for_read ? ::pread(io.fd, io.memory, length, offset)
                                        : ::pwrite(io.fd, io.memory, length, offset);
    return moved < 0 ? -errno : moved;
  }
  static void work(Ring& ring) {
    std::unique_lock lock(ring.mutex);
    while (true) {
      ring.todo.wait(lock, [&] { return ring.ending || !ring.prepared.empty(); });
      if (ring.prepared.empty()) return;
      const auto chosen =
          ring.prepared.begin() + static_cast<std::ptrdiff_t>(ring.prng.below(ring.prepared.size()));
      const Io io = *chosen;
      ring.prepared.erase(chosen);
      const std::uint64_t dice = ring.prng.below(100), cut = ring.prng.next();
      lock.unlock();
      const std::int64_t result = carry_out(ring, io, dice, cut);
      lock.lock();
      ring.completed.push_back({io.index, 0, result, io.userdata});
      ring.finished.notify_all();
    }
  }

  std::mutex mutex_;
  std::set<int> files_;
};

}  // namespace trimtab::kv_remote::usrbio
