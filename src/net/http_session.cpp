#include "net/http_session.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <cstring>

namespace trimtab::net {
namespace asio = boost::asio;
namespace {

constexpr std::size_t kReadBytes = 8 << 10;
constexpr std::size_t kBodyReadBytes = 128 << 10;

std::string text_of(const asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  return endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
}

/// True when the peer has closed its side although unread bytes keep a read from seeing it.
bool peer_closed(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return true;
  return info.tcpi_state != TCP_ESTABLISHED;
}

}  // namespace

Session::Session(asio::ip::tcp::socket socket, std::shared_ptr<SessionContext> context)
    : socket_(std::move(socket)),
      context_(std::move(context)),
      remote_(text_of(socket_)),
      buffer_(kReadBytes) {
  ++context_->stats.connections;
  write_progress_ = Clock::now();
  enter(Phase::kIdle, context_->options.head_timeout);
}

Session::~Session() {
  release_body();
  --context_->stats.connections;
}

void Session::stop_answering() {
  if (!answering_) return;
  answering_ = false;
  --context_->stats.requests_in_flight;
}

void Session::start() { read_more(); }

void Session::turn_away() { refuse(503, "too many connections are open"); }

void Session::enter(Phase phase, base::Nanos limit) {
  phase_ = phase;
  deadline_ = limit == base::kForever ? Clock::time_point::max()
                                      : Clock::now() + std::chrono::nanoseconds(limit.value);
}

void Session::sweep(Clock::time_point now) {
  if (phase_ == Phase::kClosed) return;
  const ServerOptions& options = context_->options;
  if (writing_ && now - write_progress_ > std::chrono::nanoseconds(options.write_timeout.value)) {
    ++context_->stats.slow_readers_total;
    return cut();
  }
  // Nothing is read while too many bytes are pipelined, or while a refused answer waits to be taken.
  if (phase_ == Phase::kHandling && !reading_ && peer_closed(socket_.native_handle())) return peer_left();
  if (now < deadline_) return;
  if (phase_ == Phase::kHead || phase_ == Phase::kBody) {
    ++context_->stats.timeouts_total;
    return refuse(408, "the request did not arrive in time");
  }
  if (phase_ == Phase::kIdle) ++context_->stats.timeouts_total;
  close();
}

void Session::drain() {
  keep_alive_ = false;
  if (phase_ == Phase::kIdle) close();
}

void Session::read_more() {
  if (reading_ || read_closed_ || phase_ == Phase::kClosed) return;
  if (begin_ == end_) begin_ = end_ = 0;
  if (phase_ == Phase::kBody && buffer_.size() < kBodyReadBytes) buffer_.resize(kBodyReadBytes);
  if (end_ == buffer_.size()) {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    } else {
      buffer_.resize(buffer_.size() * 2);  // bounded: heads by the parser, pipelines by `process`
    }
  }
  reading_ = true;
  socket_.async_read_some(asio::buffer(buffer_.data() + end_, buffer_.size() - end_),
                          [self = shared_from_this()](boost::system::error_code error, std::size_t bytes) {
                            self->on_read(error, bytes);
                          });
}

void Session::on_read(boost::system::error_code error, std::size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) {
    // A client may say that it sends no more and still wait for the answer that is on its way.
    read_closed_ = error == asio::error::eof;
    if (!read_closed_ || !writing_ || phase_ == Phase::kHandling) return peer_left();
    keep_alive_ = false;
    return;
  }
  end_ += bytes;
  process();
}

void Session::process() {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kHead:
    case Phase::kBody:
      return feed_parser();
    case Phase::kHandling:
    case Phase::kFlushing:
      // Only to notice the client leaving; what arrives waits its turn, within bounds.
      if (end_ - begin_ < context_->options.pipeline_bytes_max) read_more();
      return;
    case Phase::kLingering:
      return discard();
    case Phase::kClosed:
      return;
  }
}

void Session::feed_parser() {
  while (true) {
    if (phase_ == Phase::kIdle) {
      // RFC 9112, 2.2: empty lines before a request are ignored.
      while (begin_ < end_ && (buffer_[begin_] == '\r' || buffer_[begin_] == '\n')) ++begin_;
      if (begin_ == end_) return read_more();
      head_ = {};
      head_only_ = http_1_0_ = chunked_ = false;
      parser_.emplace(context_->options.header_bytes_max, context_->options.body_bytes_max);
      enter(Phase::kHead, context_->options.head_timeout);
    }
    const auto step = parser_->feed({buffer_.data() + begin_, end_ - begin_});
    begin_ += step.consumed;
    switch (step.event) {
      case RequestParser::Event::kNeedMore:
        // Beast does not bound a chunk's extensions.
        if (end_ - begin_ > kBodyReadBytes) return refuse(400, "a chunk header is too long");
        return read_more();
      case RequestParser::Event::kError:
        return refuse(step.status, step.why);
      case RequestParser::Event::kHead:
        if (!on_head()) return;
        break;
      case RequestParser::Event::kBody:
        if (!account_body()) return;
        return read_more();
      case RequestParser::Event::kDone:
        return hand_over();
    }
  }
}

bool Session::on_head() {
  head_ = parser_->head();
  head_.remote = remote_;
  head_only_ = head_.method == "HEAD";
  keep_alive_ = parser_->keep_alive() && !context_->draining;
  http_1_0_ = parser_->http_1_0();
  enter(Phase::kBody, context_->options.body_timeout);
  if (context_->handler == nullptr) {
    close();
    return false;
  }
  if (const auto refusal = context_->handler->screen(head_)) {
    ++context_->stats.refused_total;
    send_refusal(*refusal, parser_->has_body());
    return false;
  }
  if (head_.content_length.value_or(0) > context_->options.body_bytes_max)
    return true;  // the parser refuses it
  if (!account_body()) return false;
  if (parser_->has_body() && parser_->expects_continue() && begin_ == end_) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  return true;
}

bool Session::account_body() {
  const std::uint64_t declared = head_.content_length.value_or(0);
  const std::uint64_t bytes = std::max<std::uint64_t>(declared, parser_->body_bytes());
  context_->stats.bodies_bytes += bytes - body_accounted_;
  body_accounted_ = bytes;
  if (context_->stats.bodies_bytes <= context_->options.bodies_bytes_max) return true;
  refuse(503, "too many request bodies are being received");
  return false;
}

void Session::release_body() {
  context_->stats.bodies_bytes -= body_accounted_;
  body_accounted_ = 0;
}

void Session::hand_over() {
  release_body();
  Request request;
  static_cast<RequestHead&>(request) = std::move(head_);
  request.body = parser_->take_body();
  parser_.reset();
  if (buffer_.size() > kReadBytes && end_ - begin_ <= kReadBytes) {
    std::vector<char> smaller(kReadBytes);
    std::memcpy(smaller.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    buffer_ = std::move(smaller);
  }
  enter(Phase::kHandling, base::kForever);
  ++context_->stats.requests_total;
  ++context_->stats.requests_in_flight;
  answering_ = true;
  auto exchange = std::make_shared<Exchange>(shared_from_this());
  exchange_ = exchange;
  context_->handler->handle(std::move(request), std::move(exchange));
  if (phase_ == Phase::kHandling || phase_ == Phase::kFlushing) process();
}

void Session::refuse(int status, std::string_view why) {
  ++context_->stats.refused_total;
  if (context_->handler == nullptr) return close();
  send_refusal(context_->handler->refuse(head_.method.empty() ? nullptr : &head_, status, why), true);
}

void Session::send_refusal(const Response& response, bool unread_body) {
  release_body();
  parser_.reset();
  if (unread_body) keep_alive_ = false;
  send_head(response.status, response.headers, response.body.size());
  if (!head_only_) out_ += response.body;
  if (unread_body) {
    linger();
  } else {
    phase_ = Phase::kFlushing;
  }
  flush();
  process();
}

void Session::linger() {
  lingered_ = 0;
  enter(Phase::kLingering, context_->options.linger_timeout);
}

/// Closing with unread bytes would reset the connection and take the refusal away from a client that is still
/// sending; so the rest is read and dropped, within bounds.
void Session::discard() {
  if (phase_ != Phase::kLingering) return;
  lingered_ += end_ - begin_;
  begin_ = end_ = 0;
  if (lingered_ > context_->options.linger_bytes_max) return close();
  read_more();
}

}  // namespace trimtab::net
