// A slice of a run in Chrome's trace format: an array of events, times in microseconds.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "apps/simulate_output.h"

namespace trimtab::apps {
namespace {

using Kind = sim::Span::Kind;

// Processes of the timeline. Engines are threads of the first two; requests are async slices of the third.
constexpr int kPrefill = 1, kDecode = 2, kRequests = 3;

class Events {
 public:
  explicit Events(base::Nanos origin) : origin_(origin) {}

  template <class... A>
  void add(fmt::format_string<A...> format, A&&... values) {
    text_ += text_.empty() ? "\n{" : ",\n{";
    fmt::format_to(std::back_inserter(text_), format, std::forward<A>(values)...);
    text_ += '}';
  }
  /// Microseconds since the first arrival.
  std::string at(base::Nanos when) const {
    return fmt::format("{:.3f}", static_cast<double>((when - origin_).value) / 1e3);
  }
  std::string text() const { return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" + text_ + "\n]}\n"; }

 private:
  base::Nanos origin_;
  std::string text_;
};

void names(Events& events, const sim::Recording& recording) {
  const auto process = [&](int pid, const char* name) {
    events.add(R"("ph":"M","name":"process_name","pid":{},"args":{{"name":"{}"}})", pid, name);
    events.add(R"("ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":{}}})", pid, pid);
  };
  process(kPrefill, "prefill engines");
  process(kDecode, "decode groups");
  process(kRequests, "requests");
  std::set<std::pair<int, std::uint32_t>> engines;
  for (const sim::Span& span : recording.spans) {
    if (span.kind == Kind::kPrefillStep) engines.emplace(kPrefill, span.engine);
    if (span.kind == Kind::kDecodeSteps) engines.emplace(kDecode, span.engine);
  }
  for (const auto& [pid, engine] : engines) {
    events.add(R"("ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{} {}"}})", pid, engine,
               pid == kPrefill ? "engine" : "group", engine);
  }
}

void step(Events& events, const sim::Span& span) {
  const bool prefill = span.kind == Kind::kPrefillStep;
  const std::string name = span.steps > 1 ? fmt::format("steps {} to {}", span.id, span.id + span.steps - 1)
                                          : fmt::format("step {}", span.id);
  events.add(
      R"("ph":"X","cat":"step","name":"{}","pid":{},"tid":{},"ts":{},"dur":{:.3f},"args":{{"requests":{},"steps":{}}})",
      name, prefill ? kPrefill : kDecode, span.engine, events.at(span.begin),
      static_cast<double>((span.end - span.begin).value) / 1e3, span.requests, span.steps);
}

void phase(Events& events, const sim::Span& span) {
  const char* name = span.kind == Kind::kQueued    ? "queued"
                     : span.kind == Kind::kPrefill ? "prefill"
                                                   : "decode";
  const std::string where =
      span.kind == Kind::kQueued ? "" : fmt::format(R"(,"engine":{},"rank":{})", span.engine, span.rank);
  events.add(
      R"("ph":"b","cat":"request","id":"{:x}","name":"{}","pid":{},"tid":0,"ts":{},"args":{{"request":"{:x}","prompt_tokens":{}{}}})",
      span.id, name, kRequests, events.at(span.begin), span.id, span.tokens, where);
  events.add(R"("ph":"e","cat":"request","id":"{:x}","name":"{}","pid":{},"tid":0,"ts":{})", span.id, name,
             kRequests, events.at(span.end));
}

/// The slice of the engine's steps in which `when` lies, or null.
const sim::Span* step_at(const std::vector<const sim::Span*>& steps, base::Nanos when) {
  const auto after = std::ranges::upper_bound(steps, when, {}, &sim::Span::begin);
  if (after == steps.begin()) return nullptr;
  const sim::Span* step = *std::prev(after);
  return when <= step->end ? step : nullptr;
}

}  // namespace

std::string timeline_json(const sim::Recording& recording) {
  Events events(recording.origin);
  names(events, recording);
  std::map<std::pair<int, std::uint32_t>, std::vector<const sim::Span*>> steps;
  for (const sim::Span& span : recording.spans) {
    if (span.kind == Kind::kPrefillStep || span.kind == Kind::kDecodeSteps) {
      step(events, span);
      steps[{span.kind == Kind::kPrefillStep ? kPrefill : kDecode, span.engine}].push_back(&span);
    } else {
      phase(events, span);
    }
  }
  for (auto& [engine, of] : steps) std::ranges::sort(of, {}, &sim::Span::begin);
  // From the step in which a request's prefill ended to the one in which its decoding began.
  std::map<std::uint64_t, const sim::Span*> prefills;
  std::uint64_t flows = 0;
  for (const sim::Span& span : recording.spans) {
    if (span.kind == Kind::kPrefill) prefills[span.id] = &span;
    if (span.kind != Kind::kDecode) continue;
    const auto from = prefills.find(span.id);
    if (from == prefills.end()) continue;
    const sim::Span* last = step_at(steps[{kPrefill, from->second->engine}], from->second->end);
    if (last == nullptr) {  // what was left to hand over came after the step: the one before it
      const auto& of = steps[{kPrefill, from->second->engine}];
      const auto after = std::ranges::upper_bound(of, from->second->end, {}, &sim::Span::begin);
      if (after != of.begin()) last = *std::prev(after);
    }
    const sim::Span* first = step_at(steps[{kDecode, span.engine}], span.begin);
    if (last == nullptr || first == nullptr) continue;
    ++flows;
    const base::Nanos begins = std::min(last->end - base::Nanos{1}, from->second->end);
    events.add(R"("ph":"s","cat":"hand-over","name":"request {:x}","id":{},"pid":{},"tid":{},"ts":{})",
               span.id, flows, kPrefill, last->engine, events.at(std::max(begins, last->begin)));
    events.add(
        R"("ph":"f","bp":"e","cat":"hand-over","name":"request {:x}","id":{},"pid":{},"tid":{},"ts":{})",
        span.id, flows, kDecode, first->engine, events.at(std::max(span.begin, first->begin)));
  }
  return events.text();
}

}  // namespace trimtab::apps
