#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <utility>

#include "net/http_session.h"

namespace trimtab::net {
namespace asio = boost::asio;
namespace {

void append_number(std::string& out, std::uint64_t value, int base) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, base).ptr;
  out.append(digits, end);
}

}  // namespace

void Session::send_head(int status, const Headers& headers, std::optional<std::size_t> length) {
  out_ += "HTTP/1.1 ";
  append_number(out_, static_cast<std::uint64_t>(status), 10);
  out_ += ' ';
  out_ += reason_phrase(status);
  out_ += "\r\nDate: ";
  out_ += context_->date;
  for (const Header& header : headers) {
    out_ += "\r\n";
    out_ += header.name;
    out_ += ": ";
    // A value must not end its header early, whatever it was made of.
    for (const char c : header.value) out_ += c == '\r' || c == '\n' ? ' ' : c;
  }
  if (length && status != 204) {
    out_ += "\r\nContent-Length: ";
    append_number(out_, *length, 10);
  }
  if (chunked_) out_ += "\r\nTransfer-Encoding: chunked";
  if (!keep_alive_) {
    out_ += "\r\nConnection: close";
  } else if (http_1_0_) {
    out_ += "\r\nConnection: keep-alive";
  }
  out_ += "\r\n\r\n";
}

void Session::respond(Exchange& exchange, Response response) {
  if (context_->draining) keep_alive_ = false;
  send_head(response.status, response.headers, response.body.size());
  if (!head_only_) out_ += response.body;
  answer_done(exchange);
}

void Session::begin_stream(int status, const Headers& headers) {
  if (phase_ == Phase::kClosed) return;
  chunked_ = !http_1_0_;
  if (http_1_0_ || context_->draining) keep_alive_ = false;
  send_head(status, headers, std::nullopt);
  if (head_only_) chunked_ = false;
  flush();
}

bool Session::write_chunk(std::string_view bytes) {
  if (phase_ == Phase::kClosed) return false;
  if (head_only_ || bytes.empty()) return true;
  if (pending_bytes() + bytes.size() > context_->options.stream_bytes_max) {
    ++context_->stats.slow_readers_total;
    cut();
    return false;
  }
  if (chunked_) {
    append_number(out_, bytes.size(), 16);
    out_ += "\r\n";
    out_ += bytes;
    out_ += "\r\n";
  } else {
    out_ += bytes;
  }
  flush();
  return phase_ != Phase::kClosed;
}

void Session::finish(Exchange& exchange) {
  if (chunked_) out_ += "0\r\n\r\n";
  answer_done(exchange);
}

void Session::answer_done(Exchange& exchange) {
  stop_answering();
  exchange.settle();
  exchange_.reset();
  chunked_ = false;
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kFlushing;
  flush();
}

void Session::abort(Exchange& exchange) {
  stop_answering();
  exchange.settle();
  exchange_.reset();
  cut();
}

void Session::flush() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (out_.empty()) return;
  std::swap(out_, in_flight_);
  in_flight_done_ = 0;
  writing_ = true;
  write_progress_ = Clock::now();
  socket_.async_write_some(asio::buffer(in_flight_),
                           [self = shared_from_this()](boost::system::error_code error, std::size_t bytes) {
                             self->on_written(error, bytes);
                           });
}

void Session::on_written(boost::system::error_code error, std::size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return peer_left();
  in_flight_done_ += bytes;
  if (in_flight_done_ < in_flight_.size()) {
    writing_ = true;
    write_progress_ = Clock::now();
    socket_.async_write_some(
        asio::buffer(in_flight_.data() + in_flight_done_, in_flight_.size() - in_flight_done_),
        [self = shared_from_this()](boost::system::error_code next, std::size_t more) {
          self->on_written(next, more);
        });
    return;
  }
  in_flight_.clear();
  if (in_flight_.capacity() > (256U << 10)) in_flight_.shrink_to_fit();
  in_flight_done_ = 0;
  if (!out_.empty()) return flush();
  on_flushed();
}

void Session::on_flushed() {
  if (phase_ == Phase::kLingering) {
    // The refusal is out: tell the client so, and go on dropping what it still sends.
    boost::system::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    if (read_closed_) close();
    return;
  }
  if (phase_ != Phase::kFlushing) return;
  if (!keep_alive_ || context_->draining) {
    boost::system::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    if (read_closed_) return close();
    linger();
    return discard();
  }
  enter(Phase::kIdle, context_->options.idle_timeout);
  feed_parser();
}

void Session::peer_left() {
  if (phase_ == Phase::kHead || phase_ == Phase::kBody) ++context_->stats.truncated_total;
  close();
}

void Session::cut() {
  if (phase_ == Phase::kClosed) return;
  // What the client has not read is dropped by the kernel too: a reset instead of a slow goodbye.
  boost::system::error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  close();
}

void Session::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  release_body();
  boost::system::error_code ignored;
  socket_.close(ignored);
  out_.clear();
  if (!answering_) return;
  stop_answering();
  ++context_->stats.disconnects_total;
  // From a fresh call: `close` may run inside the handler's own `write`.
  if (auto exchange = exchange_.lock()) {
    exchange_.reset();
    asio::post(socket_.get_executor(), [exchange] { exchange->gone(); });
  }
}

bool Exchange::open() const {
  return (state_ == State::kWaiting || state_ == State::kStreaming) && !session_->closed();
}

Exchange::~Exchange() {
  // The handler dropped the request: never leave a client waiting.
  if (state_ == State::kWaiting) {
    respond({500, {}, ""});
  } else if (state_ == State::kStreaming) {
    abort();
  }
}

void Exchange::respond(Response response) {
  if (state_ != State::kWaiting) return;
  const auto session = session_;
  session->respond(*this, std::move(response));
}

void Exchange::begin_stream(int status, const Headers& headers) {
  if (state_ != State::kWaiting) return;
  state_ = State::kStreaming;
  session_->begin_stream(status, headers);
}

bool Exchange::write(std::string_view bytes) {
  return state_ == State::kStreaming && session_->write_chunk(bytes);
}

void Exchange::finish() {
  if (state_ != State::kStreaming) return;
  const auto session = session_;
  session->finish(*this);
}

void Exchange::abort() {
  if (state_ != State::kWaiting && state_ != State::kStreaming) return;
  const auto session = session_;
  session->abort(*this);
}

void Exchange::on_disconnect(std::function<void()> callback) {
  if (state_ == State::kDone) return;
  if (state_ == State::kGone) return callback();
  on_disconnect_ = std::move(callback);
}

void Exchange::gone() {
  if (state_ == State::kDone || state_ == State::kGone) return;
  state_ = State::kGone;
  const auto session = std::move(session_);
  const auto callback = std::exchange(on_disconnect_, nullptr);
  if (callback) callback();
}

void Exchange::settle() {
  state_ = State::kDone;
  on_disconnect_ = nullptr;
  session_.reset();
}

}  // namespace trimtab::net
