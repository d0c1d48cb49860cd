#include "net/http_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace trimtab::net {
namespace http = boost::beast::http;

struct RequestParser::Impl {
  http::request_parser<http::string_body> parser;
  bool head_seen = false;
  std::uint64_t body_bytes_max = 0;
};

namespace {

RequestParser::Step failed(boost::system::error_code error, std::size_t consumed) {
  using Event = RequestParser::Event;
  if (error == http::error::header_limit)
    return {Event::kError, consumed, 431, "the request's headers are larger than this server allows"};
  if (error == http::error::body_limit || error == http::error::buffer_overflow)
    return {Event::kError, consumed, 413, "the request's body is larger than this server allows"};
  if (error == http::error::bad_version)
    return {Event::kError, consumed, 400, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  if (error == http::error::bad_content_length || error == http::error::multiple_content_length)
    return {Event::kError, consumed, 400, "the Content-Length header is malformed or contradictory"};
  if (error == http::error::bad_transfer_encoding)
    return {Event::kError, consumed, 400, "the Transfer-Encoding header is not supported"};
  if (error == http::error::bad_chunk || error == http::error::bad_chunk_extension)
    return {Event::kError, consumed, 400, "the body's chunked encoding is malformed"};
  return {Event::kError, consumed, 400, "the request is not well-formed HTTP/1.1"};
}

}  // namespace

RequestParser::RequestParser(std::size_t header_bytes_max, std::uint64_t body_bytes_max)
    : impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<std::uint32_t>(header_bytes_max));
  // Only once the head is known, so that a refusal can be worded for its path.
  impl_->parser.body_limit(boost::none);
  impl_->body_bytes_max = body_bytes_max;
}
RequestParser::~RequestParser() = default;
RequestParser::RequestParser(RequestParser&&) noexcept = default;
RequestParser& RequestParser::operator=(RequestParser&&) noexcept = default;

RequestParser::Step RequestParser::feed(std::string_view bytes) {
  Step step;
  if (impl_->head_seen && impl_->parser.content_length().value_or(0) > impl_->body_bytes_max)
    return failed(http::error::body_limit, 0);
  while (step.consumed < bytes.size() && !impl_->parser.is_done()) {
    boost::system::error_code error;
    const auto rest = bytes.substr(step.consumed);
    const std::size_t taken = impl_->parser.put(boost::asio::buffer(rest.data(), rest.size()), error);
    step.consumed += taken;
    if (error && error != http::error::need_more) return failed(error, step.consumed);
    if (!impl_->head_seen && impl_->parser.is_header_done()) {
      impl_->head_seen = true;
      // From here on body pieces are taken in one go; until now the parser stopped after the head.
      impl_->parser.eager(true);
      impl_->parser.body_limit(impl_->body_bytes_max);
      step.event = Event::kHead;
      return step;
    }
    if (taken == 0) break;
    step.event = Event::kBody;
  }
  if (impl_->parser.is_done()) step.event = Event::kDone;
  return step;
}

RequestHead RequestParser::head() const {
  const auto& message = impl_->parser.get();
  RequestHead head;
  head.method = std::string(message.method_string());
  head.target = std::string(message.target());
  for (const auto& field : message)
    head.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  if (const auto length = impl_->parser.content_length()) head.content_length = *length;
  return head;
}

bool RequestParser::keep_alive() const { return impl_->parser.get().keep_alive(); }
bool RequestParser::http_1_0() const { return impl_->parser.get().version() < 11; }
bool RequestParser::expects_continue() const {
  return boost::beast::iequals(impl_->parser.get()[http::field::expect], "100-continue");
}
bool RequestParser::has_body() const {
  return impl_->parser.chunked() || impl_->parser.content_length().value_or(0) > 0;
}
std::size_t RequestParser::body_bytes() const { return impl_->parser.get().body().size(); }
std::string RequestParser::take_body() { return std::move(impl_->parser.get().body()); }

}  // namespace trimtab::net
