#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kv_remote/net/frame_stream.h"
#include "kv_remote/net/send_queue.h"
#include "kv_remote/net/socket.h"
#include "kv_target/target.h"

namespace trimtab::kv_remote {

struct NetworkOptions {
  std::string server;  // "host:port" of a `trimtab kv-target`
  /// A request that was sent and is not answered for so long means a server that hangs: the connection is
  /// given up, and all that was sent on it fails.
  base::Nanos request_timeout{10'000'000'000};
  base::Nanos question_timeout{5'000'000'000};  // `changes` and `space`, which wait
  base::Nanos connect_timeout{3'000'000'000};   // until the server's welcome
  base::Nanos backoff_first{50'000'000}, backoff_max{5'000'000'000};
  std::uint64_t client = 0;  // who this is, to the server; 0: random. Must be no other's
  /// `changes` asks, and answers with what came of the question before: nothing waits for a slow server. Only
  /// the first call on a connection waits, so that whoever begins to rely on this target knows all it holds.
  bool follow_in_background = false;
  ZeroCopy zero_copy = ZeroCopy::kAuto;
};

struct NetworkStats {
  std::uint64_t connects = 0;         // times the server's welcome came
  std::uint64_t breaks = 0;           // connections lost or given up
  std::uint64_t timeouts = 0;         // requests whose time was over
  std::uint64_t broken_frames = 0;    // damaged, or against the protocol
  std::uint64_t refusals = 0;         // by the server, in words
  std::uint64_t answers_dropped = 0;  // to requests that were cancelled
  std::uint64_t bytes_received = 0;
  SendStats sends;
};

/// A target on another machine, behind a `TargetServer`. One thread, no threads of its own.
///
/// - Many requests are under way at once, within the credit that the server grants; more wait here.
/// - Contents are sent from, and received into, the caller's memory.
/// - When the connection breaks, what was sent on it completes kFailed (whether a write among it was carried
///   out is not known); what was not sent yet goes out on the next connection. While the server cannot be
///   reached requests fail at once; it is dialled again after 0, then 50 ms, twice as long each time up to 5
///   s, by whoever calls `submit` or `poll`: `wake_fd` is readable when it is time.
/// - A write that was given up on is never carried out after a later one: see `Hello`.
/// - Reads that are cancelled complete at once; writes only while they were not sent.
class NetworkTarget final : public kv_target::Target {
 public:
  /// Begins to connect; kInvalidArgument for an address that is none.
  static base::Result<std::unique_ptr<NetworkTarget>> open(NetworkOptions options);
  /// Waits for the server's welcome; kUnavailable when it does not come.
  base::Status wait_until_connected(base::Nanos patience);

  void submit(std::span<const kv_target::Request> requests) override;
  std::size_t poll(std::vector<kv_target::Completion>& completed) override;
  int wake_fd() const override { return poller_.get(); }
  void cancel(std::uint64_t tag) override;
  base::Result<kv_target::Changes> changes(const kv_target::Cursor& since, std::uint32_t limit) override;
  /// As the server last said; before it said anything: no limit but 16 MiB a shard.
  kv_target::Limits limits() const override { return limits_; }
  base::Result<kv_target::Space> space() override;
  bool durable() const override { return durable_; }
  /// Of the connection; while that is up, the target's own, as the server last told it (with every answer to
  /// a question, and to a write that found it full or failing).
  std::string trouble() const override { return trouble_.empty() ? told_.trouble : trouble_; }
  bool lacks_room() const override { return trouble_.empty() && told_.lacks_room != 0; }

  NetworkStats stats() const;
  std::uint64_t server_epoch() const { return epoch_; }

 private:
  enum class State : std::uint8_t { kDown, kConnecting, kGreeting, kUp };
  struct Held {
    kv_target::Request request;
    base::Nanos deadline;
    bool sent = false;
    bool released = true;  // nobody reads `content` any more
    bool answered = false;
    kv_target::Completion completion;
  };
  struct Question {
    std::uint64_t id = 0;  // 0: none under way
    bool answered = false;
    base::Nanos until{0};       // an answer that comes later is none
    kv_target::Cursor since{};  // of one in the background
    kv_target::Outcome outcome = kv_target::Outcome::kDone;
    std::vector<std::byte> content;
  };
  explicit NetworkTarget(NetworkOptions options, Address address);

  void advance();
  void dial();
  void connected();
  void lose(std::string why, bool at_fault);
  void fail_all(bool also_unsent);
  void receive();
  std::span<std::byte> place(const Header& header);
  bool take(const Header& header);
  bool welcome(const Header& header);
  bool answer(const Header& header);
  std::uint64_t cost_of(const kv_target::Request& request) const;
  void send_waiting();
  void send(std::uint64_t id, Held& held);
  void flush();
  void finish(std::uint64_t id, kv_target::Completion completion);
  void expire();
  void arm();
  void watch();
  void wait(base::Nanos until);
  void send_question(Kind kind, std::span<const std::byte> content);
  base::Result<std::vector<std::byte>> take_answer();
  base::Result<std::vector<std::byte>> ask(Kind kind, std::span<const std::byte> content);
  base::Result<kv_target::Changes> follow(const kv_target::Cursor& since, std::uint32_t limit);
  base::Result<kv_target::Changes> take_changes(std::span<const std::byte> answer);
  base::Status cannot_be_asked() const;
  void drop_what_is_known(std::uint64_t question, kv_target::Changes& changes);

  NetworkOptions options_;
  Address address_;
  Descriptor poller_, timer_, socket_;
  State state_ = State::kDown;
  base::Nanos retry_at_{0}, connect_deadline_{0}, backoff_{0}, armed_{0};
  std::uint64_t session_ = 0, epoch_ = 0;
  std::unique_ptr<FrameStream> stream_;
  std::unique_ptr<SendQueue> out_;
  std::uint32_t watched_ = 0;

  std::map<std::uint64_t, Held> requests_;  // by our tag, which grows: the first is the oldest
  std::deque<std::uint64_t> waiting_;
  std::uint64_t last_id_ = 0;
  std::uint64_t granted_requests_ = 0, granted_bytes_ = 0, drawn_requests_ = 0, drawn_bytes_ = 0;
  Question question_;
  std::uint64_t last_question_ = 0;
  /// What we wrote or erased, and the last question that may have been answered before that was done: what
  /// its answer tells of these shards is older than what the caller knows. Only while following in the
  /// background.
  struct Touched {
    std::uint32_t under_way = 0;
    std::uint64_t question = 0;
  };
  std::map<kv_target::ShardName, Touched> touched_;
  std::uint64_t followed_session_ = 0;  // on which `changes` was answered by waiting
  std::vector<std::byte> control_, dropped_;
  std::vector<kv_target::Completion> done_;
  kv_target::Limits limits_;
  bool durable_ = false;
  std::string trouble_;
  Condition told_;
  NetworkStats stats_;
};

}  // namespace trimtab::kv_remote
