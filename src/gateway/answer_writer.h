#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gateway/chat_request.h"

namespace trimtab::gateway {

struct Usage {
  std::uint32_t prompt_tokens = 0;  // cached ones included
  std::uint32_t hit_tokens = 0;     // of the prompt, found in the pool
  std::uint32_t output_tokens = 0;
};

enum class StopCause : std::uint8_t { kEnd, kLength, kStopSequence };

struct AnswerEnd {
  StopCause cause = StopCause::kEnd;
  std::string stop_sequence;  // of kStopSequence
  Usage usage;
};

/// How one answer is worded in one API. The streaming calls append whole frames, in the order begin, text...,
/// end; a failure after `begin` is `append_error_event`.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void begin(std::string& out, const Usage& usage) = 0;
  virtual void text(std::string& out, std::string_view piece) = 0;
  virtual void end(std::string& out, const AnswerEnd& end) = 0;
  /// A sign of life for a client that waits; appends nothing when the API has none.
  virtual void ping(std::string& out) = 0;
  /// The body of an answer that is not streamed.
  virtual std::string whole(std::string_view text, const AnswerEnd& end) = 0;
};

/// `id` is the public id, `created_s` seconds since 1970.
std::unique_ptr<AnswerWriter> make_answer_writer(Api api, std::string id, std::string model,
                                                 std::int64_t created_s, bool include_usage);

}  // namespace trimtab::gateway
