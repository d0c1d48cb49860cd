#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "net/http_message.h"

namespace trimtab::net {

/// One HTTP/1 request, fed in pieces. The unconsumed rest of what was fed must be fed again, in front of what
/// follows. Beast behind a wall, so that only one file compiles it.
class RequestParser {
 public:
  enum class Event : std::uint8_t { kNeedMore, kHead, kBody, kDone, kError };
  struct Step {
    Event event = Event::kNeedMore;
    std::size_t consumed = 0;
    int status = 0;        // of kError: 400, 413, 431
    std::string_view why;  // of kError
  };

  RequestParser(std::size_t header_bytes_max, std::uint64_t body_bytes_max);
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;
  RequestParser& operator=(RequestParser&&) noexcept;

  /// kHead comes exactly once, before any byte of the body is taken; a body over the limit is an error before
  /// it is buffered. kBody means that some body was taken and more is to come.
  Step feed(std::string_view bytes);
  /// After kHead.
  RequestHead head() const;
  bool keep_alive() const;
  bool http_1_0() const;
  bool expects_continue() const;
  bool has_body() const;
  std::size_t body_bytes() const;
  /// After kDone.
  std::string take_body();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trimtab::net
