#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/units.h"

namespace trimtab::sim {

using base::Nanos;

enum class EventKind : std::uint8_t {
  kArrival,       // a: workload slot
  kPrefillStep,   // a: engine, b: version
  kPrefillReady,  // a: request slot, b: its prefill pass: hit blocks are there, the rank can compute
  kHandedOver,    // a: request slot, b: its prefill pass
  kReserveReply,  // a: request slot, b: its decode pass, doubled, and whether it was granted
  kDecode,        // a: group, b: version
  kReport,        // all decode groups
  kTimer,         // b: version of the cluster's timer
  kFault,         // a: strike of the fault plan, b: FaultSchedule::Phase
  kJoin,          // a: engine (Simulation::member), b: version: it has started up
  kEncoded,       // a: encoder, b: version
  kEmbedded,      // a: request slot, b: its prefill pass and the image: embeddings are at the rank
  kLoadReport,    // a: a decode rank's word that was on its way
};

struct QueuedEvent {
  Nanos at;
  std::uint64_t sequence = 0;  // events of one instant come in the order they were asked for
  std::uint64_t b = 0;
  std::uint32_t a = 0;
  EventKind kind = EventKind::kArrival;
};

/// Virtual time: what is to happen when. A binary heap of plain values, so that ten million events cost no
/// more than their comparisons.
class EventQueue {
 public:
  Nanos now() const { return now_; }
  bool empty() const { return heap_.empty(); }
  std::uint64_t events() const { return sequence_; }

  void at(Nanos when, EventKind kind, std::uint32_t a = 0, std::uint64_t b = 0) {
    heap_.push_back({std::max(when, now_), sequence_++, b, a, kind});
    std::ranges::push_heap(heap_, later);
  }
  void after(Nanos span, EventKind kind, std::uint32_t a = 0, std::uint64_t b = 0) {
    at(now_ + span, kind, a, b);
  }

  /// The next event, and time moves to it. There must be one.
  QueuedEvent pop() {
    TRIMTAB_CHECK(!heap_.empty());
    std::ranges::pop_heap(heap_, later);
    const QueuedEvent event = heap_.back();
    heap_.pop_back();
    now_ = event.at;
    return event;
  }

 private:
  static bool later(const QueuedEvent& x, const QueuedEvent& y) {
    return x.at != y.at ? x.at > y.at : x.sequence > y.sequence;
  }

  std::vector<QueuedEvent> heap_;
  std::uint64_t sequence_ = 0;
  Nanos now_;
};

}  // namespace trimtab::sim
