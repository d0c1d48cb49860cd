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
/// more than their comparisons. What pops mostly asks for its successor at once: the gap at the top waits for
/// it, and one way down replaces two ways through the heap.
class EventQueue {
 public:
  Nanos now() const { return now_; }
  bool empty() const { return heap_.size() == (gap_ ? 1 : 0); }
  std::uint64_t events() const { return sequence_; }

  void at(Nanos when, EventKind kind, std::uint32_t a = 0, std::uint64_t b = 0) {
    const QueuedEvent event{std::max(when, now_), sequence_++, b, a, kind};
    if (gap_) {
      gap_ = false;
      sift_down(event);
      return;
    }
    heap_.push_back(event);
    std::size_t at = heap_.size() - 1;
    for (; at > 0 && sooner(event, heap_[(at - 1) / 2]); at = (at - 1) / 2) heap_[at] = heap_[(at - 1) / 2];
    heap_[at] = event;
  }
  void after(Nanos span, EventKind kind, std::uint32_t a = 0, std::uint64_t b = 0) {
    at(now_ + span, kind, a, b);
  }

  /// The next event, and time moves to it. There must be one.
  QueuedEvent pop() {
    if (gap_) {
      const QueuedEvent last = heap_.back();
      heap_.pop_back();
      if (!heap_.empty()) sift_down(last);
    }
    TRIMTAB_CHECK(!heap_.empty());
    gap_ = true;
    now_ = heap_.front().at;
    return heap_.front();
  }

 private:
  /// As one number, so that a comparison is no branch. Times are never negative.
  static bool sooner(const QueuedEvent& x, const QueuedEvent& y) {
    using Key = unsigned __int128;
    return (Key{static_cast<std::uint64_t>(x.at.value)} << 64U | x.sequence) <
           (Key{static_cast<std::uint64_t>(y.at.value)} << 64U | y.sequence);
  }
  /// Into the gap at the top.
  void sift_down(const QueuedEvent& event) {
    const std::size_t size = heap_.size();
    std::size_t at = 0;
    while (2 * at + 1 < size) {
      std::size_t child = 2 * at + 1;
      if (child + 1 < size) child += sooner(heap_[child + 1], heap_[child]) ? 1 : 0;
      if (!sooner(heap_[child], event)) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = event;
  }

  std::vector<QueuedEvent> heap_;  // its first is gone while gap_
  bool gap_ = false;
  std::uint64_t sequence_ = 0;
  Nanos now_;
};

}  // namespace trimtab::sim
