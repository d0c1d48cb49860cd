#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/ids.h"

namespace trimtab::kv_target {

using model::BlockKey;

/// What a target keeps things by: one shard of one block's stripe.
struct ShardName {
  BlockKey key;
  std::uint8_t shard = 0;

  constexpr auto operator<=>(const ShardName&) const = default;
};
std::string to_string(const ShardName& name);

enum class Verb : std::uint8_t {
  kRead,   // `length` bytes of the shard from `offset` on, into `buffer`
  kWrite,  // all of `content` becomes the shard, in the place of what was there
  kErase,
};

/// One thing asked of a target. `buffer` and `content` belong to the target from `submit` until the request's
/// completion is handed out (or the target is destroyed): whoever gives up on a slow answer keeps the memory
/// until then, so that a late answer never lands in memory that is something else by now.
struct Request {
  Verb verb = Verb::kRead;
  ShardName name;
  std::uint64_t offset = 0;  // kRead
  std::span<std::byte> buffer;
  std::span<const std::byte> content;
  std::uint64_t tag = 0;  // comes back with the completion; the caller's to choose
  /// kRead: the target may lend its own memory (`Completion::lent`) instead of filling `buffer`.
  bool lend = false;
};

/// Content that a target lends: it stays what it was for as long as somebody holds it, whatever becomes of
/// the shard and of the target.
using Loan = std::shared_ptr<const std::byte[]>;

enum class Outcome : std::uint8_t {
  kDone,
  kMissing,   // read, erase: no such shard (of an erase: nothing to do)
  kFull,      // write: no room; erase something first
  kTooLarge,  // write: over `Limits::shard_bytes`; read: offset beyond the shard's end
  kDamaged,   // read: the target itself found its content damaged
  kFailed,    // the device, the network or the process behind it; `Target::trouble` has words for it
  kCancelled,
};
std::string_view name(Outcome outcome);

/// `bytes`: of a read, how many arrived, fewer than asked for when the shard ends before that.
struct Completion {
  std::uint64_t tag = 0;
  Outcome outcome = Outcome::kDone;
  std::uint64_t bytes = 0;
  Loan lent{};  // null: they are in the request's buffer
};

/// What a caller should not exceed. Requests over them are queued by the target, never refused.
struct Limits {
  std::uint64_t shard_bytes = 0;      // of one shard, at most
  std::uint64_t bytes_in_flight = 0;  // credit: more makes queues longer and nothing faster
  std::uint32_t requests_in_flight = 0;
  /// Reads that begin at a multiple of this, into memory that does and has room for a multiple of it, cost
  /// least (a disk read past the page cache): the shard's last bytes may be followed by anything up to there.
  std::uint64_t read_unit_bytes = 1;
};

struct Space {
  std::uint64_t capacity_bytes = 0, used_bytes = 0;
  std::uint64_t shards = 0;
  /// Since it was opened: what callers wrote, and what the device was given for it (alignment, logs, moves).
  /// device / caller is the write amplification.
  std::uint64_t caller_bytes_written = 0, device_bytes_written = 0;
};

/// One change of what a target holds, in the order of `sequence`.
struct Change {
  std::uint64_t sequence = 0;
  ShardName name;
  std::uint32_t bytes = 0;  // of the shard; 0: erased
};

/// Where somebody stands who follows a target's changes. All zero: knows nothing yet.
struct Cursor {
  std::uint64_t epoch = 0;       // of this opening of the target
  std::uint64_t sequence = 0;    // of the last change told
  std::uint64_t generation = 0;  // how often the target had forgotten erases when the telling began

  constexpr bool operator==(const Cursor&) const = default;
};

/// An answer to "what is new since".
struct Changes {
  bool complete =
      false;  // the telling starts anew: forget all that was told, these are the first page of everything
  bool more = false;  // ask again from `next` at once
  Cursor next;
  std::vector<Change> changes;
};

/// A place that keeps shards: a directory, memory, a Redis Cluster, another machine. It knows nothing of
/// codes and blocks, and does not decide what to drop.
///
/// Promises, tested by kv_target/testing/conformance.h:
/// - Every request is completed exactly once, by a `poll`, in any order.
/// - A write that completed kDone is durable to the degree the target has (`durable`), and whole: a reader
/// sees
///   the old content or the new, never a mixture, also after a kill at any moment.
/// - A write that was not completed is there whole or not at all.
/// - Requests for one shard are carried out in the order they were submitted.
///
/// A target object belongs to one thread. It may have threads of its own behind `wake_fd`.
class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  virtual void submit(std::span<const Request> requests) = 0;
  /// Appends what has completed, without waiting; how many.
  virtual std::size_t poll(std::vector<Completion>& completed) = 0;
  /// Readable (poll(2)) when `poll` may have something; -1 when completions are there as soon as `submit`
  /// returns.
  virtual int wake_fd() const = 0;
  /// Hastens the end of a request: it completes kCancelled, unless it was already under way too far.
  virtual void cancel(std::uint64_t tag) = 0;

  /// What changed after `since`, oldest first, at most `limit`. A cursor of another epoch, or one so old that
  /// erases after it are forgotten, gets everything the target holds (`complete`), page by page.
  /// kUnavailable: the target cannot be reached.
  virtual base::Result<Changes> changes(const Cursor& since, std::uint32_t limit) = 0;

  virtual Limits limits() const = 0;
  virtual base::Result<Space> space() = 0;
  virtual bool durable() const = 0;
  /// Why requests fail at present; empty while all is well.
  virtual std::string trouble() const = 0;
  /// The trouble is want of room and nothing else: what is erased can be written anew.
  virtual bool lacks_room() const { return false; }
};

}  // namespace trimtab::kv_target
