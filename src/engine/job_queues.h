#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <utility>

#include "base/check.h"

namespace trimtab::engine {

/// Jobs that wait for a mover, by `Job::Kind`: the first kinds first, each in order. Its owner locks it.
template <class Job, std::size_t kKinds>
class JobQueues {
 public:
  using Queue = std::deque<Job>;

  bool empty() const {
    return std::ranges::all_of(queues_, [](const Queue& queue) { return queue.empty(); });
  }
  Queue& of(typename Job::Kind kind) { return queues_[static_cast<std::size_t>(kind)]; }
  /// There must be one.
  Job take() {
    const auto queue = std::ranges::find_if(queues_, [](const Queue& one) { return !one.empty(); });
    TRIMTAB_CHECK(queue != queues_.end());
    Job job = std::move(queue->front());
    queue->pop_front();
    return job;
  }

 private:
  std::array<Queue, kKinds> queues_;
};

}  // namespace trimtab::engine
