#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trimtab::kv_target::file {

/// One thing for the kernel to do.
struct Io {
  enum class Kind : std::uint8_t { kRead, kWrite, kSync };  // kSync: fdatasync
  Kind kind = Kind::kRead;
  bool staged = false;  // `memory` lies in the region that was given to `make_engine`
  int fd = -1;
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0, offset = 0;  // at most 1 GiB
  std::uint64_t token = 0;
};
/// `result` as of a system call: bytes moved (may be fewer than asked for), or -errno.
struct IoDone {
  std::uint64_t token = 0;
  std::int64_t result = 0;
};

/// Does input and output without making its owner wait. Belongs to one thread; has signalled the event
/// descriptor it was made with whenever `reap` has something new.
class IoEngine {
 public:
  IoEngine() = default;
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;
  /// Nothing may be under way.
  virtual ~IoEngine() = default;

  /// Any number; those beyond what the engine does at once wait inside it. Memory stays put until it is done.
  virtual void add(const Io& io) = 0;
  /// Gives the kernel what was added.
  virtual void start() = 0;
  /// Appends what is done, in any order, without waiting.
  virtual void reap(std::vector<IoDone>& done) = 0;
  /// Waits until `reap` has something. Something must be under way.
  virtual void wait() = 0;
  virtual std::string describe() const = 0;
};

struct EngineOptions {
  bool uring = true;       // false: threads
  bool registered = true;  // register the staging region with the ring
  std::uint32_t depth = 256;
  std::uint32_t threads = 4;
  std::span<std::byte> staging;
  int event_fd = -1;
};
/// io_uring where the kernel gives one, otherwise threads; `describe` says which, and why.
std::unique_ptr<IoEngine> make_engine(const EngineOptions& options);

/// Null when the kernel refuses a ring; `why` says so then.
std::unique_ptr<IoEngine> make_uring_engine(const EngineOptions& options, std::string& why);
std::unique_ptr<IoEngine> make_thread_engine(const EngineOptions& options, std::string why);

}  // namespace trimtab::kv_target::file
