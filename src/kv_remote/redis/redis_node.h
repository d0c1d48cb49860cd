#pragma once

#include <hiredis.h>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv_remote/net/socket.h"
#include "kv_remote/redis/redis_login.h"

namespace trimtab::kv_remote {

struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;

/// One command as Redis's protocol wants it; `content` is its last argument, sent from where it lies.
struct RedisCommand {
  std::vector<std::string> words;
  std::span<const std::byte> content;
};

/// One connection to one server: commands go out in a row without waiting, replies come back in that row.
/// Its socket and its pipeline are our own (see docs/decisions); hiredis reads the replies.
class RedisNode {
 public:
  enum class State : std::uint8_t { kDown, kConnecting, kUp };
  /// With a password every connection says it first (AUTH); one whose login is refused is closed.
  RedisNode(std::string address, base::Nanos connect_timeout, base::Nanos backoff_max, RedisLogin login = {})
      : address_(std::move(address)),
        login_(std::move(login)),
        connect_timeout_(connect_timeout),
        backoff_max_(backoff_max) {}

  /// Queues one command. `ticket` comes back with its reply.
  void send(const RedisCommand& command, std::uint64_t ticket);
  /// Goes on without waiting: connects, sends, receives. `take(ticket, reply)` gets the replies. False when
  /// the connection broke or could not be made: all that was queued or sent is lost (`lost` names it).
  template <class Take>
  bool advance(base::Nanos now, Take take) {
    if (!connect(now) || !flush() || !receive()) return false;
    while (!replies_.empty()) {
      const std::uint64_t ticket = tickets_.front();
      tickets_.pop_front();
      Reply reply = std::move(replies_.front());
      replies_.pop_front();
      if (!admitted(*reply, ticket, now)) return false;
      if (ticket != kLogin) take(ticket, std::move(reply));
    }
    return true;
  }
  /// Ends the connection, for `why`; it is dialled again after a pause that grows.
  void close(std::string why, base::Nanos now);
  /// Tickets whose replies will not come any more, once.
  std::deque<std::uint64_t> lost() { return std::exchange(lost_, {}); }
  /// Nothing can be sent at present, and not before `retry_at`.
  bool resting(base::Nanos now) const { return state_ == State::kDown && now < retry_at_; }
  base::Nanos retry_at() const { return retry_at_; }

  const std::string& address() const { return address_; }
  const std::string& trouble() const { return trouble_; }
  std::size_t under_way() const { return tickets_.size(); }
  bool blocked() const { return !pieces_.empty(); }
  int fd() const { return socket_.get(); }
  State state() const { return state_; }
  std::uint64_t connects() const { return connects_; }

  /// For whoever waits on the descriptor: what epoll was asked for; 0 again when there is another descriptor.
  std::uint32_t watched = 0;

 private:
  struct ReaderDeleter {
    void operator()(redisReader* reader) const { redisReaderFree(reader); }
  };
  struct Piece {
    std::string text;                    // or, when empty,
    std::span<const std::byte> content;  // what lies with the caller
  };
  static constexpr std::uint64_t kLogin = UINT64_MAX;  // the ticket of AUTH

  bool connect(base::Nanos now);
  void log_in();
  bool admitted(const redisReply& reply, std::uint64_t ticket, base::Nanos now);
  bool flush();
  bool receive();

  std::string address_;
  RedisLogin login_;
  base::Nanos connect_timeout_, backoff_max_, retry_at_{0}, backoff_{0}, connect_deadline_{0};
  State state_ = State::kDown;
  Descriptor socket_;
  std::unique_ptr<redisReader, ReaderDeleter> reader_;
  std::deque<Piece> pieces_;
  std::size_t sent_ = 0;  // of the first piece
  std::deque<std::uint64_t> tickets_, lost_;
  std::deque<Reply> replies_;
  std::vector<char> input_;
  std::string trouble_;
  std::uint64_t connects_ = 0;
};

}  // namespace trimtab::kv_remote
