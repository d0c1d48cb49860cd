#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace trimtab::base {

/// Every operating error of the system. `http_status` gives the status a client sees for each.
enum class Code {
  kInvalidArgument,    // 400: the caller's input is wrong; a retry cannot help
  kUnauthenticated,    // 401
  kNotFound,           // 404: unknown model, request or path
  kTooLarge,           // 413: body over the limit
  kUnsupported,        // 400: well formed, but not something this system does
  kResourceExhausted,  // 429: a configured limit was reached; retry later
  kOverloaded,         // 503 (529 in the Anthropic API): queues full or predicted wait beyond the deadline
  kUnavailable,        // 503: a part is down or starting
  kDeadlineExceeded,   // 504
  kCancelled,          // 499: the client left
  kDataLoss,           // 500: a checksum did not match, a file is truncated
  kIo,                 // 500: the operating system refused
  kInternal,           // 500: a peer broke its protocol
};

int http_status(Code code);
std::string_view name(Code code);

/// What went wrong, said for the person who must mend it: the offending value and the fix belong in
/// `message`.
struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string origin;  // the room or file that found it, e.g. "gguf" or "configs/laptop.toml:12"
};

std::string to_string(const Error& error);

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Code code, std::string message, std::string origin = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(origin)});
}

}  // namespace trimtab::base

/// Returns the error of a `Result` expression to the caller; otherwise goes on.
#define TRIMTAB_TRY(expression)                                                        \
  do {                                                                                 \
    if (auto try_result_ = (expression); !try_result_)                                 \
      return ::tl::unexpected<::trimtab::base::Error>(std::move(try_result_).error()); \
  } while (false)
