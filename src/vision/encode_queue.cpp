#include "vision/encode_queue.h"

#include <iterator>

#include "base/check.h"

namespace trimtab::vision {

EncodeQueue::Running& EncodeQueue::begin(base::Nanos now) {
  TRIMTAB_CHECK(has_waiting());
  running_ = Running{std::move(waiting_.front()), next_number_++, 0, false, now};
  waiting_.pop_front();
  return *running_;
}

EncodeQueue::Running EncodeQueue::end() {
  TRIMTAB_CHECK(running_.has_value());
  Running ended = std::move(*running_);
  running_.reset();
  return ended;
}

bool EncodeQueue::abort(model::RequestId id) {
  std::erase_if(waiting_, [&](const wire::Encode& job) { return job.id == id; });
  if (!running_ || running_->job.id != id) return true;
  running_->aborted = true;
  return false;
}

std::vector<wire::Encode> EncodeQueue::take_waiting() {
  std::vector<wire::Encode> jobs(std::make_move_iterator(waiting_.begin()),
                                 std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  return jobs;
}

}  // namespace trimtab::vision
