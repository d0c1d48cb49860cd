#pragma once

#include <cstdint>
#include <vector>

#include "model/trace.h"
#include "sim/workload.h"

namespace trimtab::sim {

/// A closed loop in its stationary state. Every conversation is laid out in time (its start, then think times
/// and `answer_token` for each token of an answer) and wound around a circle of one `period`: what of it
/// falls into lap n is a piece of its own, which begins in the middle of the conversation with what was left
/// of the think time. So a period holds every turn once, all the time as many conversations are under way as
/// their lengths say, and what comes in at its end equals what came in at its start.
struct Folded {
  Starts starts;                    // first turns of pieces, within the period, in order of time
  std::vector<std::uint32_t> laps;  // of each request: pieces end where it changes
  std::uint32_t laps_total = 1;
  /// Pieces (their first turns) that begin in the middle of a conversation, by when their turn before was:
  /// its blocks and those of the turns before are in the pool when the period begins.
  std::vector<std::uint32_t> under_way;
};

/// `starts`: of the whole conversations, over `starts.span`; the period is that span / `rate`. A closed loop.
Folded fold(const model::Trace& trace, const Starts& starts, double rate, Nanos answer_token);

}  // namespace trimtab::sim
