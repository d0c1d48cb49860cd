#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv_remote/net/frame_stream.h"
#include "kv_remote/net/send_queue.h"
#include "kv_remote/net/socket.h"
#include "kv_target/target.h"

namespace trimtab::kv_remote {

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // port 0: any free one
  /// Of one connection: bytes of contents (those it is sending us, and those it asked for) and requests that
  /// are not answered and done with. At least the target's shard_bytes.
  std::uint64_t credit_bytes = 32ULL << 20;
  std::uint32_t credit_requests = 512;
  /// Of all connections together; a connection that does not fit is refused.
  std::uint64_t memory_bytes = 2ULL << 30;
  base::Nanos hello_patience{5'000'000'000};
  /// An orderly stop waits so long for what is under way.
  base::Nanos stop_patience{5'000'000'000};
  std::uint64_t epoch = 1;  // of this start; differs from one to the next
  ZeroCopy zero_copy = ZeroCopy::kAuto;
};

struct ServerStats {
  std::uint64_t accepted = 0, refused = 0, open = 0;
  std::uint64_t reads = 0, writes = 0, erases = 0, questions = 0, failed = 0;
  std::uint64_t bytes_received = 0, bytes_sent = 0;
  std::uint64_t broken_frames = 0;      // damaged, or against the protocol: the connection was closed
  std::uint64_t credit_overdrawn = 0;   // of those, because the client exceeded its credit
  std::uint64_t memory_bytes_peak = 0;  // the most that one connection held at once
  SendStats sends;                      // of connections that ended
};

/// Serves one target to any number of connections. One thread: whoever calls `step` or `serve`.
///
/// Memory is bounded by credit: a connection may have `credit_bytes` and `credit_requests` under way, from
/// the moment its request arrives until the last byte of the answer has left this process; a client that
/// exceeds that is cut off. A client that does not read its answers therefore stalls only itself.
class TargetServer {
 public:
  static base::Result<std::unique_ptr<TargetServer>> listen(kv_target::Target& target, ServerOptions options);
  ~TargetServer();
  std::uint16_t port() const { return port_; }

  /// One turn: waits up to `patience` for something to do, and does it.
  void step(base::Nanos patience);
  /// Turns until `stop`; then answers what is under way, takes nothing new, and closes.
  void serve(const std::atomic<bool>& stop);
  /// Ends the present wait early. From any thread.
  void wake() const;
  ServerStats stats() const;

 private:
  struct Connection;
  struct Pending {  // a request in the target's hands
    std::uint64_t connection = 0;
    Header question;
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t cost_bytes = 0;
  };
  explicit TargetServer(kv_target::Target& target, ServerOptions options);
  base::Status start();

  void accept_all();
  void refuse(Descriptor socket, const std::string& why);
  void handle(Connection& connection, std::uint32_t events);
  std::span<std::byte> place(Connection& connection, const Header& header);
  bool take(Connection& connection, const Header& header);
  bool greet(Connection& connection, const Header& header);
  bool drops_elders(const Hello& hello, const Connection& self);
  bool request(Connection& connection, const Header& header);
  bool draw(Connection& connection, std::uint64_t bytes);
  bool question(Connection& connection, const Header& header);
  void submit();
  void collect();
  void answer(Pending pending, const kv_target::Completion& completion);
  void settle(Connection& connection);
  void watch(Connection& connection);
  void close_broken(std::uint64_t id);
  void close_late();
  bool idle() const;

  kv_target::Target& target_;
  ServerOptions options_;
  Descriptor listener_, poller_, bell_;
  std::uint16_t port_ = 0;
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<std::uint64_t, Pending> pending_;  // by the tag the target knows
  std::vector<kv_target::Request> incoming_;
  std::vector<kv_target::Completion> completions_;
  std::uint64_t orphan_bytes_ = 0;  // of pending requests whose connection is gone
  /// The newest session of each client, of the last `kClientsKept` that came.
  std::unordered_map<std::uint64_t, std::uint64_t> sessions_;
  std::deque<std::uint64_t> clients_;
  ServerStats stats_;
  bool stopping_ = false;
};

}  // namespace trimtab::kv_remote
