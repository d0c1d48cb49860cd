#pragma once

#include <iosfwd>
#include <string>

namespace trimtab::text {

/// `trimtab tokenize --model GGUF`: reads JSON lines and answers each with one JSON line, for tests and
/// scripts:
///   {"text": "...", "special": false}  or  {"hex": "e282", ...}   ->  {"ids": [...]}
///   {"ids": [...]}                                                 ->  {"text": "...", "hex": "..."}
///   {"messages": [{"role": "user", "content": "..."}]}               ->  {"ids": [...]}, the chat prompt
/// A line that cannot be used is answered by {"error": "..."}. Returns the exit status: 0, or 1 when the
/// model cannot be loaded (said on `err`).
int tokenize_command(const std::string& model_path, std::istream& in, std::ostream& out, std::ostream& err);

}  // namespace trimtab::text
