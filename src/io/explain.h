#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "io/decision_log.h"

namespace trimtab::io {

/// The journey of one request for people: one line a moment, then what it came to, the tokens with the
/// checksums of their logits rows, and the damage found in the log, if any.
std::string explain_text(const LoggedRequest& request);

/// The same for programs:
///
///   {"id", "name", "submitted_unix_ns", "state": "running" | "finished" | "failed" | "cancelled",
///    "summary": {"prompt_tokens", "hit_tokens", "computed_tokens", "output_tokens", "tier", "queue_ms",
///                "quota_predicted_ms", "quota_spent_ms", "ttft_ms", "tpot_ms", "total_ms", "passes",
///                "redos"},
///    "events": [{"at_ms", "kind", "text", ...the fields of the record}],
///    "tokens": [id...], "checksums": ["16 hexadecimal digits"...], "token_at_ms": [...],
///    "images": [{"image", "rows", "text_tokens", "truncated_tokens", "token_ids"}]}
///
/// Times are milliseconds since the submission. A field that is not known (yet) is null.
std::string explain_json(const LoggedRequest& request);

/// Longer than a running gateway takes between two writes of its log (100 ms).
void wait_for_the_log();

/// `trimtab explain ID`: finds the request in the log of `directory` and prints it. One that is not there or
/// has not ended is looked for once more after `wait`: what is asked right after an answer may not be written
/// yet. Returns the exit status: 0, or 1 with one line that says what is wrong.
int explain_command(const std::string& directory, const std::string& name_or_id, bool json, std::ostream& out,
                    std::ostream& errors, const std::function<void()>& wait = wait_for_the_log);

}  // namespace trimtab::io
