#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"

namespace trimtab::obs {

/// A process of a served system that ended without being told to: what the supervisor tells of it to whoever
/// is asked how the system is.
struct ProcessEnd {
  std::string name;             // "prefill 0.1"
  std::uint64_t times = 0;      // since the supervisor started
  std::uint32_t in_a_row = 0;   // of them, the latest ones that came within kHealthyAfter of their start
  std::string how;              // "exited with 1"
  std::string said;             // the line of its log that says why; empty: it wrote none
  std::string log;              // that file
  std::int64_t started_ns = 0;  // of its present life, an instant of the machine's steady clock; 0: none
  template <class A>
  void visit(A& a) {
    a(name, times, in_a_row, how, said, log, started_ns);
  }
};

/// A process that has run for so long is over whatever ended it at its start.
inline constexpr base::Nanos kHealthyAfter{30'000'000'000};

/// "exited with 1, 3 times in a row; /logs/kv-loader.log says: no such directory"; `to_words` puts the name
/// before.
std::string how_it_ended(const ProcessEnd& end);
std::string to_words(const ProcessEnd& end);
/// It does not run, or comes up only to end again.
bool is_alarming(const ProcessEnd& end, base::Nanos now);

/// By the directory in which the processes meet. What cannot be written is not told; what cannot be read is
/// nothing: the supervisor says it all on its own stderr too.
void write_process_ends(const std::string& runtime_dir, const std::vector<ProcessEnd>& ends);
std::vector<ProcessEnd> read_process_ends(const std::string& runtime_dir);

}  // namespace trimtab::obs
