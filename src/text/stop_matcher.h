#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trimtab::text {

/// Finds the first stop sequence in streamed text and holds back what may still become one, so that no part
/// of a stop sequence is ever shown. One KMP automaton per sequence: O(sequences) per byte.
class StopMatcher {
 public:
  struct Output {
    std::string text;                    // to show; ends before the stop sequence when one matched
    std::optional<std::size_t> matched;  // index of the stop sequence that ended the answer
  };

  /// Empty sequences are an error (kInvalidArgument), as are more than `kSequencesMax` or longer ones than
  /// `kSequenceBytesMax`.
  static base::Result<StopMatcher> create(std::vector<std::string> sequences);
  static constexpr std::size_t kSequencesMax = 16;
  static constexpr std::size_t kSequenceBytesMax = 1024;

  /// The sequence that ends first wins; of those that end together, the longest. After a match nothing more
  /// comes out.
  Output push(std::string_view text);
  /// At the end of the stream: what was held back.
  std::string flush();
  /// Bytes shown so far.
  std::uint64_t shown_bytes() const { return shown_bytes_; }

 private:
  struct Automaton {
    std::string sequence;
    std::vector<std::uint32_t> fallback;
    std::uint32_t state = 0;  // bytes of `sequence` matched
  };
  std::vector<Automaton> automata_;
  std::string held_;
  std::uint64_t shown_bytes_ = 0;
  bool done_ = false;
};

}  // namespace trimtab::text
