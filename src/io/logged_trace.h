#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "io/decision_log.h"
#include "io/trace_reader.h"
#include "model/trace.h"

namespace trimtab::io {

/// Makes a trace of the entries of a decision log, given in the log's order. Requests that finished or were
/// cancelled after their first token count, with the lengths they had by then; refused, failed and unfinished
/// ones are left out with a note. Times are the calendar's, so that a log may span restarts.
///
/// Blocks: the log says how many tokens of a prompt hit, not which. A hit of n blocks is taken to be of the
/// latest earlier request whose prompt, or prompt and answer, ends at that very block, else of the latest one
/// that is long enough; block ids are made up accordingly and go on over the answer, which later turns hit.
/// Images are those that were encoded: of the others only the tokens mattered, which hit.
class LoggedTrace {
 public:
  LoggedTrace();
  LoggedTrace(LoggedTrace&&) noexcept;
  LoggedTrace& operator=(LoggedTrace&&) noexcept;
  ~LoggedTrace();
  void add(const Entry& entry);
  /// `name` stands for the log in notes.
  model::Trace finish(const std::string& name) &&;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The same of the log in `directory`. kNotFound when there is none.
base::Result<model::Trace> read_logged_trace(const std::string& directory, const TraceOptions& options);

}  // namespace trimtab::io
