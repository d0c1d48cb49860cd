#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "net/http_parser.h"

namespace {

using trimtab::net::RequestParser;

struct Seen {
  int heads = 0, requests = 0, status = 0;
  std::string bodies;
};

/// Feeds as a session does: what was not consumed again, in front of what follows; a new parser per request.
Seen run(std::string_view bytes, std::size_t piece) {
  Seen seen;
  RequestParser parser(4096, 4096);
  std::string held;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    held += bytes.substr(at, piece);
    while (true) {
      const auto step = parser.feed(held);
      if (step.consumed > held.size()) std::abort();
      held.erase(0, step.consumed);
      if (step.event == RequestParser::Event::kError) {
        if (step.status < 400 || step.status > 499) std::abort();
        seen.status = step.status;
        return seen;
      }
      if (step.event == RequestParser::Event::kHead) {
        ++seen.heads;
        (void)parser.head();
      }
      if (step.event == RequestParser::Event::kDone) {
        ++seen.requests;
        seen.bodies += parser.take_body();
        parser = RequestParser(4096, 4096);
      }
      if (step.event == RequestParser::Event::kNeedMore) break;
    }
  }
  return seen;
}

}  // namespace

/// Any bytes are requests or a 4xx, and the same ones whether they come at once or in pieces.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Seen whole = run(bytes, bytes.size() + 1), cut = run(bytes, 1 + data[0] % 64);
  // Where a limit strikes may depend on the pieces; what was well formed may not.
  const bool good = whole.status == 0 && cut.status == 0;
  if (good && (whole.requests != cut.requests || whole.bodies != cut.bodies)) std::abort();
  return 0;
}
