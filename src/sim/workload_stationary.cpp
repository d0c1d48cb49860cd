#include "sim/workload_stationary.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace trimtab::sim {
namespace {

struct Piece {
  Nanos at, before;  // within the period; when the turn before was, since the conversations began
  std::uint32_t request = 0;
};

std::int64_t divided(std::int64_t value, double rate) {
  return static_cast<std::int64_t>(static_cast<double>(value) / rate);
}

}  // namespace

Folded fold(const model::Trace& trace, const Starts& starts, double rate, Nanos answer_token) {
  TRIMTAB_CHECK(trace.closed_loop && rate > 0, "an open loop has nothing to fold");
  const std::int64_t period = std::max<std::int64_t>(divided(starts.span.value, rate), 1);
  Folded out;
  out.laps.resize(trace.requests.size());
  std::vector<Piece> first, middle;
  for (std::size_t s = 0; s < starts.request.size(); ++s) {
    std::int64_t at = divided(starts.at[s].value, rate), before = at;
    const std::uint32_t begin = starts.request[s];
    const std::uint32_t conversation = trace.requests[begin].conversation;
    for (std::uint32_t i = begin; i < trace.requests.size() && trace.requests[i].conversation == conversation;
         ++i) {
      const model::TraceRequest& request = trace.requests[i];
      // The think time of a first turn is before the start, which is given.
      if (i > begin) at += request.think.value;
      out.laps[i] = static_cast<std::uint32_t>(std::min<std::int64_t>(at / period, UINT32_MAX - 1));
      out.laps_total = std::max(out.laps_total, out.laps[i] + 1);
      if (i == begin || out.laps[i] != out.laps[i - 1]) {
        first.push_back({Nanos{at % period}, Nanos{before}, i});
        // In this piece's own time, in which its period begins at 0.
        if (i > begin)
          middle.push_back({{}, Nanos{before - static_cast<std::int64_t>(out.laps[i]) * period}, i});
      }
      before = at;
      at += std::max<std::int64_t>(request.output_tokens, 1) * answer_token.value;
    }
  }
  std::ranges::sort(first, {}, [](const Piece& piece) { return std::tuple(piece.at, piece.request); });
  std::ranges::sort(middle, {}, [](const Piece& piece) { return std::tuple(piece.before, piece.request); });
  for (const Piece& piece : first) {
    out.starts.request.push_back(piece.request);
    out.starts.at.push_back(piece.at);
  }
  for (const Piece& piece : middle) out.under_way.push_back(piece.request);
  out.starts.span = Nanos{period};
  return out;
}

}  // namespace trimtab::sim
