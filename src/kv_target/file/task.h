#pragma once

#include "kv_target/file/extent_log.h"

namespace trimtab::kv_target::file {

struct Task;

/// Requests of one shard: any number of reads at once, or one write or erase.
struct Lane {
  ShardName name;
  std::uint32_t readers = 0;
  bool writer = false;
  Task* first = nullptr;  // of those that wait
  Task* last = nullptr;
};

/// A request under way.
struct Task {
  enum class Stage : std::uint8_t {
    kFree,     // none: its memory waits for the next
    kWaiting,  // for requests of the same shard before it
    kQueued,   // for the means to move its content
    kMoving,   // some of its content is with the kernel
    kMoved,    // all of it is where it belongs, or nothing was to be moved
  };

  Request request;
  Stage stage = Stage::kWaiting;
  Outcome outcome = Outcome::kDone;
  Extent extent;                 // read, erase: what is there; write: what will be
  std::uint64_t bytes = 0;       // to be moved
  std::uint64_t next = 0;        // the first of them that is in no operation yet
  std::uint32_t operations = 0;  // with the kernel
  bool in_log = false;           // its record may have reached the log, whatever the outcome
  std::uint8_t batch = 0;        // of the committer
  Lane* lane = nullptr;
  Task* behind = nullptr;  // the next in the line for this shard
};

}  // namespace trimtab::kv_target::file
