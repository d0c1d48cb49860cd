#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <semaphore>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kv_remote/usrbio/usrbio_api.h"

namespace trimtab::kv_remote {

struct UsrbioOptions {
  std::string mount_point;             // of 3FS, e.g. "/3fs/stage"
  std::uint32_t entries = 256;         // requests in each of the two rings
  std::uint64_t slot_bytes = 1 << 20;  // one request moves at most this much
  std::uint32_t slots = 64;            // slots x slot_bytes of memory are shared with the 3FS client
  int numa = -1;                       // of the process
  int event_fd = -1;                   // an eventfd that is signalled when `reap` has something; -1: none
};

/// Reads and writes of files on 3FS without its FUSE mount in between: through memory shared with the 3FS
/// client (the Iov, cut into slots) and two rings, one for reads and one for writes. Contents are copied
/// between the slots and the caller's memory. Requests larger than a slot, and those that come back short,
/// go on in further requests; what is reported is the whole: bytes moved, fewer only at a file's end, or
/// -errno.
///
/// One thread owns it; two of its own wait for the rings, as the interface demands that only one thread waits
/// for each. Files must be registered before they are used, and deregistered before they are closed.
class UsrbioIo {
 public:
  struct Job {
    bool read = true;
    int fd = -1;
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0, offset = 0;
    std::uint64_t token = 0;
  };
  struct Done {
    std::uint64_t token = 0;
    std::int64_t result = 0;  // bytes, or -errno
  };
  /// kUnavailable with the cause when 3FS refuses a ring or the memory.
  static base::Result<std::unique_ptr<UsrbioIo>> open(UsrbioOptions options, const usrbio::Api& api);
  /// Waits for what is under way.
  ~UsrbioIo();

  base::Status register_file(int fd);
  void deregister_file(int fd);

  /// Any number; those beyond rings and slots wait here. Memory stays put until the job is done.
  void add(const Job& job);
  /// Gives what was added to the rings.
  void start();
  /// Appends what is done, in any order, without waiting.
  void reap(std::vector<Done>& done);
  /// Waits until `reap` has something. Something must be under way.
  void wait();
  std::uint64_t under_way() const { return jobs_; }
  /// From here on this eventfd is signalled.
  void tell(int event_fd) { event_fd_ = event_fd; }

 private:
  struct Whole {  // a job and how far it came
    Job job;
    std::uint64_t next = 0;   // where the next part begins
    std::uint64_t end = 0;    // nothing beyond this is there, as a read found out
    std::uint32_t parts = 0;  // requests under way, or to be made again
    std::int64_t error = 0;
  };
  struct Part {
    std::shared_ptr<Whole> whole;
    std::uint64_t at = 0, bytes = 0;  // within the job
    std::uint32_t slot = 0;
  };
  struct Ring {
    usrbio::Ior ior{};
    bool made = false;
    std::atomic<int> broken{0};  // errno with which waiting failed: what it holds never comes back
    std::uint32_t in_ring = 0;
    std::counting_semaphore<> prepared{0};  // one for each request that its waiter should await
    std::thread waiter;
  };
  explicit UsrbioIo(UsrbioOptions options, const usrbio::Api& api);
  base::Status start_rings();
  void await(Ring& ring);
  bool prepare(Part part);
  void arrived(std::uint32_t slot, std::int64_t result);
  void settle(Part part, std::int64_t result);
  void fail_broken();
  void finish_if_done(const std::shared_ptr<Whole>& whole);
  bool has_news();
  void signal();

  UsrbioOptions options_;
  const usrbio::Api& api_;
  usrbio::Iov iov_{};
  bool iov_made_ = false;
  Ring rings_[2];  // writes, reads
  std::vector<std::uint32_t> free_slots_;
  std::vector<Part> parts_;  // by slot
  std::deque<std::shared_ptr<Whole>> added_;
  std::deque<Part> again_;  // the rest of what came back short
  std::set<int> files_;
  std::vector<Done> done_;
  std::uint64_t jobs_ = 0;

  std::mutex mutex_;  // of what follows
  std::vector<usrbio::Cqe> completed_;
  std::atomic<bool> ending_{false};
  std::atomic<int> event_fd_{-1};
  std::counting_semaphore<> news_{0};
};

}  // namespace trimtab::kv_remote
