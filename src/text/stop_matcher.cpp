#include "text/stop_matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trimtab::text {

namespace {

/// KMP: fallback[i] is the length of the longest proper prefix of the first i bytes that is also their
/// suffix.
std::vector<std::uint32_t> fallback_of(const std::string& sequence) {
  std::vector<std::uint32_t> fallback(sequence.size() + 1, 0);
  std::uint32_t matched = 0;
  for (std::size_t i = 1; i < sequence.size(); ++i) {
    while (matched > 0 && sequence[i] != sequence[matched]) matched = fallback[matched];
    if (sequence[i] == sequence[matched]) ++matched;
    fallback[i + 1] = matched;
  }
  return fallback;
}

}  // namespace

base::Result<StopMatcher> StopMatcher::create(std::vector<std::string> sequences) {
  if (sequences.size() > kSequencesMax) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{} stop sequences given, {} are allowed", sequences.size(), kSequencesMax),
                      "text");
  }
  StopMatcher matcher;
  for (std::string& sequence : sequences) {
    if (sequence.empty() || sequence.size() > kSequenceBytesMax) {
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("a stop sequence has {} bytes, 1 to {} are allowed", sequence.size(),
                                    kSequenceBytesMax),
                        "text");
    }
    auto fallback = fallback_of(sequence);
    matcher.automata_.push_back({std::move(sequence), std::move(fallback), 0});
  }
  return matcher;
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  Output output;
  if (done_) return output;
  for (const char byte : text) {
    held_ += byte;
    std::size_t longest = 0;  // partial match that ends here: nothing before it can become a stop sequence
    for (std::size_t i = 0; i < automata_.size(); ++i) {
      Automaton& automaton = automata_[i];
      while (automaton.state > 0 && automaton.sequence[automaton.state] != byte) {
        automaton.state = automaton.fallback[automaton.state];
      }
      if (automaton.sequence[automaton.state] == byte) ++automaton.state;
      const bool whole = automaton.state == automaton.sequence.size();
      if (whole && (!output.matched || automaton.state > automata_[*output.matched].sequence.size())) {
        output.matched = i;
      }
      longest = std::max<std::size_t>(longest, automaton.state);
    }
    if (output.matched) {
      held_.resize(held_.size() - automata_[*output.matched].sequence.size());
      output.text += std::exchange(held_, {});
      done_ = true;
      break;
    }
    if (held_.size() > longest) {
      output.text.append(held_, 0, held_.size() - longest);
      held_.erase(0, held_.size() - longest);
    }
  }
  shown_bytes_ += output.text.size();
  return output;
}

std::string StopMatcher::flush() {
  shown_bytes_ += held_.size();
  return std::exchange(held_, {});
}

}  // namespace trimtab::text
