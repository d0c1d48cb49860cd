#include "text/incremental_detokenizer.h"

#include "text/utf8.h"

namespace trimtab::text {

std::string IncrementalDetokenizer::push(TokenId id) {
  if (tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  return take(false);
}

std::string IncrementalDetokenizer::flush() { return take(true); }

std::string IncrementalDetokenizer::take(bool at_end) {
  std::string text;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Step step = utf8_step(pending_, at);
    if (step.kind == Utf8Step::Kind::kUnfinished && !at_end) break;
    text += step.kind == Utf8Step::Kind::kCharacter ? std::string_view(pending_).substr(at, step.length)
                                                    : kReplacement;
    at += step.length;
  }
  pending_.erase(0, at);
  return text;
}

}  // namespace trimtab::text
