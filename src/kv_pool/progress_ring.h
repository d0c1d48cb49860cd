#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "ipc/segment.h"

namespace trimtab::kv_pool {

/// What became of a block of a fetch plan, and how far it has come.
enum class FetchOutcome : std::uint32_t {
  kLayers,   // the first `layers` layers are in the slot
  kWhole,    // all of it is, and has this checksum
  kMissing,  // not in the pool any more: compute it
  kFailed,   // the store could not read it in time
  kLate,     // the plan's deadline passed first
  kRefused,  // of block kWholePlan: the plan is larger than the loader takes
};

struct ProgressEntry {
  static constexpr std::uint32_t kWholePlan = UINT32_MAX;
  std::uint64_t plan = 0;
  std::uint32_t block = 0;  // of the plan
  std::uint32_t slot = 0;   // kLayers, kWhole
  std::uint32_t layers = 0;
  FetchOutcome outcome = FetchOutcome::kLayers;
  std::uint64_t checksum = 0;  // kWhole

  bool operator==(const ProgressEntry&) const = default;
};

/// One loader's news to one of its users, in memory that both map: a ring with one writer and one reader,
/// and a word to sleep on. What finds no room waits with the writer, in order; it is bounded by the plans.
/// Every entry is sealed with its place and number, so that a reader never acts on one that somebody
/// overwrote, or that was never written.
class RingWriter {
 public:
  static base::Result<RingWriter> make(std::uint32_t entries);

  void push(const ProgressEntry& entry) { waiting_.push_back(entry); }
  /// Entries of a plan that its user gave up and that it need not see any more.
  void drop(std::uint64_t plan);
  /// Writes what fits and wakes the reader. False: the reader broke the ring, and is to be dropped.
  bool flush();
  /// Entries that found no room.
  std::size_t waiting() const { return waiting_.size(); }
  int fd() const { return segment_.fd(); }

 private:
  ipc::Segment segment_;
  std::uint64_t head_ = 0;  // its own: what lies in shared memory is for the reader only
  std::uint32_t capacity_ = 0;
  std::deque<ProgressEntry> waiting_;
};

class RingReader {
 public:
  RingReader() = default;
  /// kInternal: not such a ring.
  static base::Result<RingReader> open(ipc::Segment segment);

  /// Appends what is new. kInternal: the ring is damaged; nothing that comes from it can be believed.
  base::Status read(std::vector<ProgressEntry>& entries);
  /// To be taken before `read`; `sleep` then returns at once when something was written after it.
  std::uint32_t ticket() const;
  void sleep(std::uint32_t ticket, base::Nanos most) const;

 private:
  ipc::Segment segment_;
  std::uint64_t tail_ = 0;
  std::uint32_t capacity_ = 0;
};

}  // namespace trimtab::kv_pool
