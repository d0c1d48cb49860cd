#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/units.h"
#include "net/http_message.h"

namespace boost::asio {
class io_context;
}

namespace trimtab::net {

/// Where one answer is written: `respond` once, or `begin_stream`, any number of `write`s and `finish` (or
/// `abort`). Calls come from the io_context's thread. After the client has left, calls are ignored. A writer
/// that is dropped without an answer answers 500 by itself, so that no client waits for ever.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void respond(Response response) = 0;
  /// Sends the head of a streamed (chunked) answer.
  virtual void begin_stream(int status, const Headers& headers) = 0;
  /// Appends to the stream. False when the client is gone, or was cut off because it does not read: then
  /// `on_disconnect` is called soon, never from inside this call.
  virtual bool write(std::string_view bytes) = 0;
  virtual void finish() = 0;
  /// Ends the connection without ending the answer properly: the client sees that it is truncated.
  virtual void abort() = 0;
  /// `callback` is called at most once, when the client leaves (closes its side, resets, is cut off) before
  /// the answer is finished: at once, even while nothing is written.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  /// False once the answer is finished or the client is gone.
  virtual bool open() const = 0;
  /// Bytes accepted by `write` that the kernel has not taken yet.
  virtual std::size_t pending_bytes() const = 0;
};

/// What a server serves. Calls come from the io_context's thread.
class Handler {
 public:
  virtual ~Handler() = default;
  /// The head is there, the body is not. An answer given here costs neither the body's transfer nor its
  /// parsing; this is the place to shed load.
  virtual std::optional<Response> screen(const RequestHead& head) = 0;
  virtual void handle(Request request, std::shared_ptr<ResponseWriter> writer) = 0;
  /// Words a refusal by the server itself (400, 408, 413, 431, 500, 503). `head` is null when no head could
  /// be read.
  virtual Response refuse(const RequestHead* head, int status, std::string_view why) = 0;
};

struct ServerOptions {
  std::string host = "127.0.0.1";               // an IP address, or "localhost"
  std::uint16_t port = 0;                       // 0: any free one, see `Server::port`
  std::size_t connections_max = 1024;           // 503 and close beyond
  std::size_t header_bytes_max = 16 << 10;      // 431 beyond
  std::uint64_t body_bytes_max = 32ULL << 20;   // 413 beyond, before anything is buffered
  std::uint64_t bodies_bytes_max = 1ULL << 30;  // bodies being received, all connections together: 503 beyond
  std::size_t stream_bytes_max = 1 << 20;       // unread output of one stream; the reader is cut off beyond
  std::size_t pipeline_bytes_max = 64 << 10;    // read ahead while an answer is being made
  int send_buffer_bytes = 0;                    // SO_SNDBUF; 0: the kernel's choice
  base::Nanos head_timeout = base::Nanos{10'000'000'000};   // first byte to end of head: 408
  base::Nanos body_timeout = base::Nanos{120'000'000'000};  // end of head to end of body: 408
  base::Nanos idle_timeout = base::Nanos{75'000'000'000};   // between requests: closed
  base::Nanos write_timeout = base::Nanos{30'000'000'000};  // output that makes no progress: cut off
  base::Nanos linger_timeout = base::Nanos{5'000'000'000};  // after a refusal the rest of the body is drained
  std::uint64_t linger_bytes_max = 64ULL << 20;
};

/// Since start, except `connections` and `requests_in_flight`, which are now.
struct ServerStats {
  std::uint64_t connections = 0;
  std::uint64_t requests_in_flight = 0;  // handed to the handler and not answered yet
  std::uint64_t bodies_bytes = 0;        // of bodies being received now
  std::uint64_t accepted_total = 0;
  std::uint64_t requests_total = 0;
  std::uint64_t refused_total = 0;       // answered by `screen` or `refuse`
  std::uint64_t disconnects_total = 0;   // clients that left before their answer was finished
  std::uint64_t truncated_total = 0;     // requests cut short by their client
  std::uint64_t timeouts_total = 0;      // slow heads, bodies and idle connections
  std::uint64_t slow_readers_total = 0;  // cut off because they did not read
};

/// HTTP/1.1 on one io_context thread: keep-alive, pipelining (one request at a time, in order), chunked
/// bodies, `Expect: 100-continue`, streamed answers with back-pressure. A client that shuts down its sending
/// side is taken to have left. Parsing is Boost.Beast's.
class Server {
 public:
  /// Binds and listens at once; serves when the io_context runs. Fails with kUnavailable when the port is
  /// taken and with kInvalidArgument for a host that is no address. `handler` must outlive the server.
  static base::Result<std::unique_ptr<Server>> listen(boost::asio::io_context& io, ServerOptions options,
                                                      Handler& handler);
  virtual ~Server() = default;
  virtual std::uint16_t port() const = 0;
  virtual ServerStats stats() const = 0;
  /// Accepts nothing more, closes idle connections and calls `done` when the last answer is out, or when
  /// `limit` has passed and what was left has been cut.
  virtual void drain(base::Nanos limit, std::function<void()> done) = 0;
};

}  // namespace trimtab::net
