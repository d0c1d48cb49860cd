#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "net/http_message.h"

namespace trimtab::net {

/// One blocking HTTP/1.1 connection: for command-line tools, tests and load generators. It also sends raw
/// bytes, so that a test can misbehave. Every wait is bounded by the timeout (kDeadlineExceeded).
class BlockingClient {
 public:
  static base::Result<BlockingClient> connect(const std::string& host, std::uint16_t port,
                                              std::chrono::milliseconds timeout = std::chrono::seconds(10));
  BlockingClient(BlockingClient&& other) noexcept;
  BlockingClient& operator=(BlockingClient&& other) noexcept;
  ~BlockingClient();

  base::Status send(std::string_view bytes);
  /// What has arrived, at least one byte; empty when the server has closed.
  base::Result<std::string> read_some();
  /// One whole answer, chunked ones decoded. kDataLoss when the connection ends inside it. `head_only`: the
  /// answer to HEAD. Skips "100 Continue".
  base::Result<Response> read_response(bool head_only = false);
  base::Result<Response> request(std::string_view method, std::string_view target, std::string_view body = {},
                                 const Headers& headers = {});

  void shutdown_send();
  void close();
  /// Closes with a reset, as a crashed client does.
  void reset();
  /// SO_RCVBUF, to play a client that hardly reads.
  void receive_buffer_bytes(int bytes);

 private:
  explicit BlockingClient(int descriptor) : descriptor_(descriptor) {}
  base::Status fill();
  base::Result<std::string> read_line();
  base::Result<std::string> read_exactly(std::size_t bytes);

  int descriptor_ = -1;
  std::string buffer_;  // received, not yet consumed
};

}  // namespace trimtab::net
