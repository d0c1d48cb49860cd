#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "model/trace.h"
#include "sim/event_queue.h"

namespace trimtab::sim {

struct WorkloadOptions {
  /// Open loop: arrivals come `rate` times as fast. Closed loop: so many times as many conversations start in
  /// the same span. Conversations stay whole either way.
  double rate = 1.0;
  /// Closed loop whose starts were not recorded: they come evenly over this span, in the order of the trace.
  Nanos start_span{8LL * 3600 * 1'000'000'000};
  /// Turns of a closed loop count one by one: when so many have begun, no client asks again.
  std::int64_t requests_max = INT64_MAX;
  /// The trace is run this often, one after the other; each time with contents of its own.
  std::int64_t repeats = 1;
};

/// The requests that depend on nothing (of an open loop all, of a closed loop first turns), in the order in
/// which they start, and when, as recorded.
struct Starts {
  std::vector<std::uint32_t> request;
  std::vector<Nanos> at;
  Nanos span;  // of the whole trace: after it, it may run again
};
/// `start_span`: see WorkloadOptions.
Starts starts_of(const model::Trace& trace, Nanos start_span);

/// Turns a trace into arrivals, one at a time: memory does not grow with the number of requests.
class Workload {
 public:
  struct Item {
    std::uint32_t request = 0;  // of the trace
    std::uint32_t repeat = 0;
    Nanos at;
  };
  /// Errors: a rate that is not positive and finite, a trace without requests, negative spans or repeats.
  static base::Result<Workload> make(const model::Trace& trace, const WorkloadOptions& options);

  /// The next arrival that depends on nothing, in order of time.
  std::optional<Item> next();
  /// Closed loop: what its client does once `item` has ended.
  std::optional<Item> follow(const Item& item, Nanos ended);

  const model::TraceRequest& request(const Item& item) const { return trace_->requests[item.request]; }
  /// Block runs of the request, told apart by repeat.
  void runs(const Item& item, std::vector<model::BlockRun>& out) const;
  const model::Trace& trace() const { return *trace_; }
  std::int64_t requests_total() const;

 private:
  Workload(const model::Trace& trace, const WorkloadOptions& options);

  const model::Trace* trace_;
  WorkloadOptions options_;
  Starts starts_;
  std::size_t next_ = 0;
  std::uint32_t repeat_ = 0;
  std::int64_t drawn_ = 0;
};

}  // namespace trimtab::sim
