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
  /// Closed loop: it begins in its stationary state (workload_stationary.h), in a period of the starts' span
  /// / `rate`, with conversations under way and their earlier blocks in the pool.
  bool stationary = false;
  /// Stationary: a turn takes about so long for each token of its answer. Where think times are much longer
  /// than answers, it matters little.
  Nanos answer_token{15'000'000};
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
    std::uint32_t lap = 0;  // stationary: which lap of its conversation
  };
  /// Errors: a rate that is not positive and finite, a trace without requests, negative spans or repeats; an
  /// open loop that should be stationary, or conversations that are too long for it.
  static base::Result<Workload> make(const model::Trace& trace, const WorkloadOptions& options);

  /// The next arrival that depends on nothing, in order of time.
  std::optional<Item> next();
  /// Closed loop: what its client does once `item` has ended.
  std::optional<Item> follow(const Item& item, Nanos ended);

  const model::TraceRequest& request(const Item& item) const { return trace_->requests[item.request]; }
  /// Stationary: the turns whose blocks the pool has when this repeat begins, the longest unused first.
  /// `each` gets them as items of the piece that follows.
  template <class Each>
  void stored_before(std::uint32_t repeat, const Each& each) const {
    for (const std::uint32_t first : under_way_) {
      std::uint32_t begin = first;
      while (begin > 0 && trace_->requests[begin - 1].conversation == trace_->requests[first].conversation)
        --begin;
      for (std::uint32_t i = begin; i < first; ++i) each(Item{i, repeat, {}, laps_[first]});
    }
  }
  /// Block runs of the request, told apart by repeat and lap.
  void runs(const Item& item, std::vector<model::BlockRun>& out) const;
  const model::Trace& trace() const { return *trace_; }
  std::int64_t requests_total() const;

 private:
  Workload(const model::Trace& trace, const WorkloadOptions& options);

  const model::Trace* trace_;
  WorkloadOptions options_;
  Starts starts_;
  std::vector<std::uint32_t> laps_, under_way_;  // stationary: Folded
  std::uint32_t laps_total_ = 1;
  std::size_t next_ = 0;
  std::uint32_t repeat_ = 0;
  std::int64_t drawn_ = 0;
};

}  // namespace trimtab::sim
