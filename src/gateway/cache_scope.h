#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gateway/json_in.h"
#include "text/answer_memory.h"

namespace trimtab::gateway {

/// What divides the clients' cached work, made of a request's `cache_salt` (vLLM's member, in its chat and
/// Messages APIs alike) and `extra_key` (SGLang's): requests that agree in both share blocks, snapshots of
/// window state and remembered answers, and no others do. Empty when neither is given: shared by all such.
/// A digest: the salt is a secret between a client and its like, so nothing behind the parser sees it, and no
/// log, file or page can show it. Both are told apart inside it, so that ("ab", "c") is not ("a", "bc")
/// (sglang#24638). kInvalidArgument: not a string (its kind is named, its value is not), or an empty one.
base::Result<std::string> read_cache_scope(const JsonObject& body);

/// The text under which an answer of this scope is remembered: no text of another scope is equal to it.
std::string scoped_answer(std::string_view cache_scope, std::string_view text);

/// The remembered answers of one scope. An answer's ids are as good as its blocks for telling, by the number
/// of tokens, that somebody else was given the same words.
class ScopedAnswers final : public text::AnswerLookup {
 public:
  ScopedAnswers(text::AnswerMemory& memory, std::string cache_scope)
      : memory_(memory), cache_scope_(std::move(cache_scope)) {}
  std::optional<std::vector<text::TokenId>> find(std::string_view text, std::uint64_t context) override {
    return memory_.find(scoped_answer(cache_scope_, text), context);
  }

 private:
  text::AnswerMemory& memory_;
  std::string cache_scope_;
};

}  // namespace trimtab::gateway
