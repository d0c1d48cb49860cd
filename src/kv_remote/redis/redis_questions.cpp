#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "kv_remote/redis/redis_target.h"

/// What is asked of nodes: who serves which slot, what they hold, how full they are.
namespace trimtab::kv_remote {

using kv_target::Changes;
using kv_target::ShardName;

namespace {

constexpr std::size_t kKeysPerStep = 512;
constexpr int kStepsPerAnswer = 64;  // of a scan, within one call of `changes`

std::uint64_t number_after(std::string_view text, std::string_view label) {
  const auto at = text.find(label);
  std::uint64_t number = 0;
  if (at != std::string_view::npos)
    std::from_chars(text.data() + at + label.size(), text.data() + text.size(), number);
  return number;
}

std::string_view text_of(const redisReply& reply) { return {reply.str, reply.len}; }

}  // namespace

/// Asks one node after the other until one knows.
void RedisTarget::learn_map(base::Nanos now) {
  if (!map_wanted_ || map_work_ != 0 || now < map_not_before_) return;
  std::vector<std::string> candidates = map_.nodes();
  candidates.insert(candidates.end(), options_.servers.begin(), options_.servers.end());
  for (std::size_t tried = 0; tried < candidates.size(); ++tried) {
    const std::string& name = candidates[map_turn_++ % candidates.size()];
    if (node(name).link.resting(now)) continue;
    Work work = question(name, {{{"CLUSTER", "SLOTS"}, {}}});
    work.deadline = now + options_.connect_timeout;
    earliest_ = std::min(earliest_, work.deadline);
    map_work_ = ++last_id_;
    works_.emplace(map_work_, std::move(work));
    map_not_before_ = now + options_.wait_pause;
    return launch(map_work_);
  }
  map_not_before_ = now + options_.wait_pause;
  give_up_unplaced();
}

void RedisTarget::map_arrived(const std::string& asked, const redisReply& reply) {
  if (reply.type == REDIS_REPLY_ERROR) {
    if (text_of(reply).find("cluster support disabled") == std::string_view::npos) {
      trouble_ = fmt::format("redis {}: {}", asked, text_of(reply));
      return give_up_unplaced();
    }
    cluster_ = false;
  } else if (reply.type == REDIS_REPLY_ARRAY) {
    cluster_ = true;
    map_.clear();
    for (std::size_t i = 0; i < reply.elements; ++i) {
      const redisReply& range = *reply.element[i];
      if (range.type != REDIS_REPLY_ARRAY || range.elements < 3 || range.element[2]->elements < 2) continue;
      const redisReply& master = *range.element[2];
      // A node that does not know its own name means the one it was asked under.
      std::string host = master.element[0]->len > 0 ? std::string(text_of(*master.element[0]))
                                                    : asked.substr(0, asked.rfind(':'));
      map_.assign(static_cast<std::uint32_t>(range.element[0]->integer),
                  static_cast<std::uint32_t>(range.element[1]->integer),
                  fmt::format("{}:{}", host, master.element[1]->integer));
    }
  } else {
    return;
  }
  mapped_ = true;
  map_wanted_ = false;
  ++stats_.maps;
  std::deque<std::uint64_t> waiting;
  waiting.swap(unplaced_);
  for (const std::uint64_t id : waiting)
    if (works_.contains(id)) launch(id);
}

std::vector<std::string> RedisTarget::masters() const {
  if (cluster_) return map_.nodes();
  return {options_.servers.front()};
}

RedisTarget::Work RedisTarget::question(const std::string& name, std::vector<RedisCommand> commands) const {
  Work work;
  work.ours = true;
  work.fixed_node = name;
  work.commands = std::move(commands);
  work.deadline = steady_now() + options_.question_timeout;
  return work;
}

/// Replies of each work, in their order; an error when one of them has none.
base::Result<RedisTarget::Replies> RedisTarget::ask(std::vector<Work> works) {
  std::vector<std::uint64_t> ids;
  const base::Nanos until = steady_now() + options_.question_timeout;
  for (Work& work : works) {
    ids.push_back(++last_id_);
    earliest_ = std::min(earliest_, work.deadline);
    works_.emplace(ids.back(), std::move(work));
    launch(ids.back());
  }
  const auto answered = [this](std::uint64_t id) { return answers_.contains(id); };
  pump();
  while (!std::ranges::all_of(ids, answered) && steady_now() < until) wait(until);
  Replies replies;
  for (const std::uint64_t id : ids) {
    if (works_.contains(id)) finish(id, {0, kv_target::Outcome::kFailed, 0});
    replies.push_back(std::move(answers_[id]));
    answers_.erase(id);
  }
  arm();
  if (std::ranges::any_of(replies, [](const auto& reply) { return reply.empty(); })) {
    return base::fail(base::Code::kUnavailable,
                      trouble_.empty() ? "a Redis node does not answer a question" : trouble_, "kv_remote");
  }
  return replies;
}

base::Status RedisTarget::await_map() {
  const base::Nanos until = steady_now() + options_.question_timeout;
  while (!mapped_ && steady_now() < until) {
    const bool all_rest = std::ranges::all_of(options_.servers, [this](const std::string& server) {
      return node(server).link.resting(steady_now());
    });
    if (all_rest) break;
    wait(until);
  }
  if (mapped_) return {};
  return base::fail(base::Code::kUnavailable,
                    trouble_.empty() ? fmt::format("no Redis at {}", options_.servers.front()) : trouble_,
                    "kv_remote");
}

base::Result<kv_target::Space> RedisTarget::space() {
  TRIMTAB_TRY(await_map());
  std::vector<Work> works;
  for (const std::string& name : masters())
    works.push_back(question(name, {{{"INFO", "memory"}, {}}, {{"DBSIZE"}, {}}}));
  auto replies = ask(std::move(works));
  if (!replies) return tl::unexpected<base::Error>(replies.error());
  kv_target::Space space;
  for (const auto& of_node : *replies) {
    const std::string_view info = text_of(*of_node[0]);
    const std::uint64_t limit = number_after(info, "\nmaxmemory:");
    space.capacity_bytes += limit > 0 ? limit : number_after(info, "total_system_memory:");
    const auto keys = static_cast<std::uint64_t>(of_node[1]->integer);
    // Redis counts buffers of its own as data; a node without keys has none of ours.
    if (keys > 0) space.used_bytes += number_after(info, "used_memory_dataset:");
    space.shards += keys;
  }
  space.caller_bytes_written = space.device_bytes_written = caller_bytes_written_;
  return space;
}

void RedisTarget::held(const ShardName& name, std::uint32_t bytes) {
  Known& known = known_[name];
  known.seen = scan_.number;
  // Our own writes are always told: the content is another one though its length is the same.
  if (known.bytes == bytes && !touched_.contains(name)) return;
  known.bytes = bytes;
  feed_.put(name, bytes);
}

void RedisTarget::gone(const ShardName& name) {
  if (known_.erase(name) > 0) feed_.erased(name);
}

base::Result<Changes> RedisTarget::changes(const kv_target::Cursor& since, std::uint32_t limit) {
  TRIMTAB_TRY(await_map());
  const base::Nanos now = steady_now();
  if (!scan_.running && (scan_.number == 0 || now - scan_.ended >= options_.rescan_every)) {
    ++scan_.number;
    scan_.running = true;
    scan_.looked = false;
    const auto nodes = masters();
    scan_.nodes.assign(nodes.begin(), nodes.end());
    scan_.cursor = "0";
  }
  Changes answer = feed_.since(since, limit);
  for (int step = 0; scan_.running && answer.changes.size() < limit && step < kStepsPerAnswer; ++step) {
    TRIMTAB_TRY(scan_step());
    answer = feed_.since(since, limit);
  }
  answer.more = answer.more || scan_.running;
  return answer;
}

base::Status RedisTarget::scan_step() {
  touched_.clear();
  if (!scan_.nodes.empty()) return scan_node();
  if (!scan_.looked) {
    scan_.looked = true;
    scan_.doubtful.clear();
    for (const auto& [name, known] : known_)
      if (known.seen < scan_.number) scan_.doubtful.push_back(name);
  }
  if (!scan_.doubtful.empty()) return scan_doubtful();
  scan_.running = false;
  scan_.ended = steady_now();
  ++stats_.scans;
  return {};
}

base::Status RedisTarget::scan_node() {
  const std::string name = scan_.nodes.front();
  std::vector<Work> works;
  works.push_back(question(
      name, {{{"SCAN", scan_.cursor, "MATCH", options_.prefix + ":*", "COUNT", std::to_string(kKeysPerStep)},
              {}}}));
  auto page = ask(std::move(works));
  if (!page) return tl::unexpected<base::Error>(page.error());
  const redisReply& reply = *(*page)[0][0];
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2 || reply.element[0]->type != REDIS_REPLY_STRING)
    return base::fail(base::Code::kUnavailable, fmt::format("redis {} does not answer SCAN", name),
                      "kv_remote");
  std::vector<ShardName> names;
  std::vector<RedisCommand> lengths;
  for (std::size_t i = 0; i < reply.element[1]->elements; ++i) {
    const std::string_view key = text_of(*reply.element[1]->element[i]);
    ShardName shard;
    if (!name_of(key, shard)) continue;
    names.push_back(shard);
    lengths.push_back({{"STRLEN", std::string(key)}, {}});
  }
  const std::string cursor(text_of(*reply.element[0]));
  if (!names.empty()) {
    works.clear();
    works.push_back(question(name, std::move(lengths)));
    auto replies = ask(std::move(works));
    if (!replies) return tl::unexpected<base::Error>(replies.error());
    for (std::size_t i = 0; i < names.size(); ++i) {
      // Our own write or erase that ended meanwhile knows better. An error: it moves to another node just
      // now.
      const redisReply& length = *(*replies)[0][i];
      if (touched_.contains(names[i]) || length.type != REDIS_REPLY_INTEGER || length.integer == 0) continue;
      held(names[i], static_cast<std::uint32_t>(length.integer));
    }
  }
  scan_.cursor = cursor;
  if (cursor == "0") scan_.nodes.pop_front();
  return {};
}

/// A shard that moves between nodes while they are scanned may be seen on neither: so each is asked for where
/// it belongs before it is called gone.
base::Status RedisTarget::scan_doubtful() {
  std::vector<Work> works;
  std::vector<ShardName> names;
  for (; !scan_.doubtful.empty() && works.size() < kKeysPerStep; scan_.doubtful.pop_front()) {
    names.push_back(scan_.doubtful.front());
    Work work = question({}, {});
    work.request.name = names.back();
    prepare(work);
    works.push_back(std::move(work));
  }
  auto replies = ask(std::move(works));
  if (!replies) return tl::unexpected<base::Error>(replies.error());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const redisReply& length = *(*replies)[i][0];
    if (touched_.contains(names[i]) || length.type != REDIS_REPLY_INTEGER) continue;
    if (length.integer == 0)
      gone(names[i]);
    else
      held(names[i], static_cast<std::uint32_t>(length.integer));
  }
  return {};
}

}  // namespace trimtab::kv_remote
