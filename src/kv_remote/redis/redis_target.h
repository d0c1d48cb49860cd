#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv_remote/redis/redis_node.h"
#include "kv_remote/redis/slot_map.h"
#include "kv_target/change_feed.h"
#include "kv_target/target.h"

namespace trimtab::kv_remote {

struct RedisOptions {
  /// "host:port" of a plain server, or of some nodes of a cluster; the others are learned from them.
  std::vector<std::string> servers;
  RedisLogin login;                // said on every connection, to all nodes of a cluster alike
  std::string prefix = "trimtab";  // of every key; letters, digits, '-', '_', '.'
  std::uint64_t shard_bytes = 16ULL << 20;
  std::uint32_t pipeline_requests = 128;  // under way at one node
  std::uint64_t pipeline_bytes = 8ULL << 20;
  base::Nanos request_timeout{5'000'000'000};
  base::Nanos question_timeout{5'000'000'000};  // of each question that `changes` and `space` wait for
  base::Nanos connect_timeout{1'000'000'000}, backoff_max{2'000'000'000};
  /// How long a request is tried again while the cluster elects or moves its slot, and the pause between.
  base::Nanos wait_patience{2'000'000'000}, wait_pause{10'000'000};
  base::Nanos rescan_every{60'000'000'000};  // what other writers did is found by scanning, this often
  std::uint64_t epoch = 0;                   // 0: random
};

struct RedisStats {
  std::uint64_t moved = 0, asked = 0, waited = 0;  // redirections that were followed, and busy slots
  std::uint64_t maps = 0;                          // times the cluster's slots were learned
  std::uint64_t timeouts = 0, connects = 0, scans = 0;
  std::uint64_t corrected = 0;  // shards that were believed to be there and were not
};

/// Shards as binary strings in a Redis or a Redis Cluster: key "prefix:<32 hex digits>:<shard>". For small
/// fleets: contents are in the servers' memory, so capacity is their maxmemory (set `maxmemory-policy
/// noeviction`: then a full server says so, and drops nothing behind our back).
///
/// - One thread, one connection a node, many commands under way on each. One shard has one request under way;
///   later ones wait for it, so that their order survives redirections and retries.
/// - A connection that breaks fails what was sent on it. While a node is away its slots fail at once, and the
///   map is learned anew from the others.
/// - Redis acknowledges writes before its replicas have them: `durable` is false, and a failover may lose
///   what was acknowledged; a read then says kMissing, and `changes` tells it.
/// - `changes`: everything by SCAN at first, then this object's own writes and erases at once, and what
/// others
///   did at the next scan (`rescan_every`).
class RedisTarget final : public kv_target::Target {
 public:
  /// kInvalidArgument for options that make no sense. Connects while being polled.
  static base::Result<std::unique_ptr<RedisTarget>> open(RedisOptions options);
  ~RedisTarget() override;

  void submit(std::span<const kv_target::Request> requests) override;
  std::size_t poll(std::vector<kv_target::Completion>& completed) override;
  int wake_fd() const override { return poller_.get(); }
  /// Reads complete at once; writes and erases only while they were not sent.
  void cancel(std::uint64_t tag) override;
  base::Result<kv_target::Changes> changes(const kv_target::Cursor& since, std::uint32_t limit) override;
  kv_target::Limits limits() const override;
  base::Result<kv_target::Space> space() override;
  bool durable() const override { return false; }
  std::string trouble() const override { return trouble_; }

  RedisStats stats() const;
  const SlotMap& slots() const { return map_; }
  std::string key_of(const kv_target::ShardName& name) const;
  /// False: no key of ours.
  bool name_of(std::string_view key, kv_target::ShardName& name) const;

 private:
  /// A request, or a question of our own, from its arrival to its end.
  struct Work {
    kv_target::Request request;
    bool ours = false;
    std::string fixed_node;  // ours: asked there and nowhere else
    std::vector<RedisCommand> commands;
    std::uint32_t slot = 0;
    std::uint64_t bytes = 0;
    std::string node;  // where it is queued or sent
    bool asking = false, sent = false;
    int redirections = 0;
    base::Nanos deadline{0}, give_up{0};
    std::vector<Reply> replies;
  };
  struct Node {
    RedisNode link;
    std::deque<std::uint64_t> waiting;
    std::uint64_t requests = 0, bytes = 0;  // sent
  };
  struct Known {
    std::uint32_t bytes = 0;
    std::uint64_t seen = 0;  // in the scan of this number
  };
  struct Scan {
    std::uint64_t number = 0;
    bool running = false;
    std::deque<std::string> nodes;
    std::string cursor = "0";
    std::deque<kv_target::ShardName> doubtful;  // not seen: asked for one by one before they are given up
    bool looked = false;                        // every node was scanned
    base::Nanos ended{0};
  };
  explicit RedisTarget(RedisOptions options);

  // redis_target.cpp: the course of requests
  void prepare(Work& work) const;
  void launch(std::uint64_t id);
  void place(std::uint64_t id, Work& work, const std::string& node);
  void pump();
  void fill(Node& node);
  void broken(const std::string& name, Node& node);
  void expire(base::Nanos now);
  void resume(base::Nanos now);
  void give_up_unplaced();
  void settle(std::uint64_t id);
  bool redirect(std::uint64_t id, Work& work, std::string_view error);
  kv_target::Completion outcome_of(Work& work);
  void finish(std::uint64_t id, kv_target::Completion completion);
  void leave_node(Work& work);
  Node& node(const std::string& name);
  void arm();
  void watch();
  void wait(base::Nanos until);

  // redis_questions.cpp: what is asked of nodes rather than of shards
  void learn_map(base::Nanos now);
  void map_arrived(const std::string& asked, const redisReply& reply);
  std::vector<std::string> masters() const;
  using Replies = std::vector<std::vector<Reply>>;
  base::Result<Replies> ask(std::vector<Work> works);
  Work question(const std::string& node, std::vector<RedisCommand> commands) const;
  base::Status await_map();
  base::Status scan_step();
  base::Status scan_node();
  base::Status scan_doubtful();
  void held(const kv_target::ShardName& name, std::uint32_t bytes);
  void gone(const kv_target::ShardName& name);

  RedisOptions options_;
  Descriptor poller_, timer_;
  base::Nanos armed_{0};
  std::map<std::string, std::unique_ptr<Node>> nodes_;
  bool mapped_ = false, cluster_ = false, map_wanted_ = true;
  std::uint64_t map_work_ = 0;  // the question under way
  std::size_t map_turn_ = 0;
  base::Nanos map_not_before_{0};
  SlotMap map_;

  std::map<std::uint64_t, Work> works_;
  std::unordered_map<kv_target::ShardName, std::deque<std::uint64_t>, kv_target::ShardHash> lanes_;
  std::deque<std::uint64_t> unplaced_;  // until the map is known
  std::multimap<base::Nanos, std::uint64_t> paused_;
  std::uint64_t last_id_ = 0;
  base::Nanos earliest_{0};
  bool moved_on_ = false;
  std::vector<kv_target::Completion> done_;
  std::map<std::uint64_t, std::vector<Reply>> answers_;  // to questions

  kv_target::ChangeFeed feed_;
  std::unordered_map<kv_target::ShardName, Known, kv_target::ShardHash> known_;
  std::unordered_set<kv_target::ShardName, kv_target::ShardHash> touched_;  // since the scan's step began
  Scan scan_;
  std::uint64_t caller_bytes_written_ = 0;
  std::string trouble_;
  RedisStats stats_;
};

}  // namespace trimtab::kv_remote
