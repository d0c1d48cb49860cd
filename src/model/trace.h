#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"

namespace trimtab::model {

/// Consecutive block ids first, first + 1 ... of a prompt's prefix blocks. Equal ids mean equal content of
/// the block and of all before it. Runs that go on behind the prompt are of its answer.
struct BlockRun {
  std::uint64_t first = 0;
  std::uint32_t count = 0;
};

struct TraceImage {
  std::uint32_t tokens = 0;  // placeholder tokens; 0: only the size is known
  std::uint32_t width = 0, height = 0;
};

/// One recorded request. Either its arrival is given (open loop), or it follows the one before it in its
/// conversation by `think` after that one has ended (closed loop).
struct TraceRequest {
  base::Nanos arrival;  // since the trace began; of a closed loop: since the conversation began, as recorded
  base::Nanos think;    // closed loop: from the end of the turn before to this one
  std::int64_t prompt_tokens = 0;  // images included
  std::int64_t output_tokens = 0;
  std::uint32_t conversation = 0;
  std::uint32_t turn = 0;        // in its conversation
  std::uint32_t runs_begin = 0;  // of Trace::runs
  std::uint32_t runs_count = 0;
  std::uint32_t images_begin = 0;  // of Trace::images
  std::uint32_t images_count = 0;
};

/// A workload: what a simulator replays. Requests of an open loop are in order of arrival; of a closed loop,
/// by conversation and turn.
struct Trace {
  std::string name;
  bool closed_loop = false;
  std::int64_t block_tokens = 0;  // tokens of one block id; 0: the trace knows no prefixes
  /// Arrivals lie before it; 0: it ends with the last one. Of a closed loop: the `arrival` of a first turn is
  /// when its conversation starts, before `span`; 0: those starts were not recorded, and whoever replays
  /// spreads them.
  base::Nanos span;
  std::vector<TraceRequest> requests;
  std::vector<BlockRun> runs;
  std::vector<TraceImage> images;
  std::uint32_t conversations = 0;
  std::vector<std::string> notes;  // what the reader left out, and why

  std::span<const BlockRun> runs_of(const TraceRequest& request) const {
    return std::span(runs).subspan(request.runs_begin, request.runs_count);
  }
  std::span<const TraceImage> images_of(const TraceRequest& request) const {
    return std::span(images).subspan(request.images_begin, request.images_count);
  }
};

}  // namespace trimtab::model
