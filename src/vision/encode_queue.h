#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/ids.h"
#include "wire/messages.h"

namespace trimtab::vision {

/// The images that one encoder has to read, first come, first served; one at a time is being read.
class EncodeQueue {
 public:
  struct Running {
    wire::Encode job;
    std::uint64_t number = 0;  // names it to the OCR worker; never used twice
    int attempts = 0;
    bool aborted = false;  // finish, but throw the result away
    base::Nanos begun;
  };

  void push(wire::Encode job) { waiting_.push_back(std::move(job)); }
  bool idle() const { return !running_ && waiting_.empty(); }
  bool has_waiting() const { return !running_ && !waiting_.empty(); }

  /// Takes the next job up (`has_waiting()` must hold).
  Running& begin(base::Nanos now);
  Running* running() { return running_ ? &*running_ : nullptr; }
  /// The running job is over.
  Running end();

  /// Drops the request's waiting images. True when nothing of it is left here; false when an image of it is
  /// being read: it is marked aborted and its end is the end of the request.
  bool abort(model::RequestId id);
  /// Gives up all that waits, e.g. because no worker can start.
  std::vector<wire::Encode> take_waiting();

 private:
  std::deque<wire::Encode> waiting_;
  std::optional<Running> running_;
  std::uint64_t next_number_ = 1;
};

}  // namespace trimtab::vision
