#include "kv_remote/redis/redis_target.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

namespace trimtab::kv_remote {

using kv_target::Completion;
using kv_target::Outcome;
using kv_target::Request;
using kv_target::ShardName;
using kv_target::Verb;

namespace {
constexpr int kRedirectionsMax = 16;

std::uint64_t fresh_epoch(std::uint64_t wanted) {
  if (wanted == 0) (void)::getrandom(&wanted, sizeof wanted, 0);
  return wanted | 1;
}
}  // namespace

RedisTarget::RedisTarget(RedisOptions options)
    : options_(std::move(options)), feed_(fresh_epoch(options_.epoch)) {
  poller_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  timer_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = 0}};
  ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, timer_.get(), &event);
}
RedisTarget::~RedisTarget() = default;

base::Result<std::unique_ptr<RedisTarget>> RedisTarget::open(RedisOptions options) {
  if (options.servers.empty())
    return base::fail(base::Code::kInvalidArgument, "no Redis server is named: give one host:port",
                      "kv_remote");
  for (const std::string& server : options.servers) {
    if (auto address = resolve(server); !address) return tl::unexpected<base::Error>(address.error());
  }
  const bool plain = !options.prefix.empty() && std::ranges::all_of(options.prefix, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (!plain || options.pipeline_requests == 0 || options.shard_bytes == 0) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("prefix \"{}\", pipeline of {}: the prefix has letters, digits, '-', '_' and "
                    "'.' only, and the pipeline at least 1",
                    options.prefix, options.pipeline_requests),
        "kv_remote");
  }
  std::unique_ptr<RedisTarget> target(new RedisTarget(std::move(options)));
  target->pump();
  target->arm();
  return target;
}

std::string RedisTarget::key_of(const ShardName& name) const {
  return fmt::format("{}:{:016x}{:016x}:{}", options_.prefix, name.key.high, name.key.low, name.shard);
}

bool RedisTarget::name_of(std::string_view key, ShardName& name) const {
  const std::size_t begin = options_.prefix.size();
  if (key.size() < begin + 35 || !key.starts_with(options_.prefix) || key[begin] != ':' ||
      key[begin + 33] != ':')
    return false;
  const auto number = [&key](std::size_t at, std::size_t length, int base, auto& value) {
    const auto [end, bad] = std::from_chars(key.data() + at, key.data() + at + length, value, base);
    return bad == std::errc{} && end == key.data() + at + length;
  };
  return number(begin + 1, 16, 16, name.key.high) && number(begin + 17, 16, 16, name.key.low) &&
         number(begin + 34, key.size() - begin - 34, 10, name.shard);
}

kv_target::Limits RedisTarget::limits() const {
  const std::uint64_t nodes = std::max<std::uint64_t>(1, cluster_ ? map_.nodes().size() : 1);
  return {options_.shard_bytes, options_.pipeline_bytes * nodes,
          static_cast<std::uint32_t>(options_.pipeline_requests * nodes)};
}

/// The commands of a request. No offset: GETRANGE alone, whose empty answer means that there is no such key,
/// since shards are not empty. Otherwise STRLEN tells a missing shard from one that ends before the offset.
void RedisTarget::prepare(Work& work) const {
  const Request& request = work.request;
  const std::string key = key_of(request.name);
  work.slot = redis_slot(key);
  switch (request.verb) {
    case Verb::kWrite:
      work.bytes = request.content.size();
      work.commands.push_back({{"SET", key}, request.content});
      return;
    case Verb::kErase:
      work.commands.push_back({{"DEL", key}, {}});
      return;
    case Verb::kRead:
      break;
  }
  work.bytes = std::min<std::uint64_t>(request.buffer.size(), options_.shard_bytes);
  if (request.offset > 0 || work.bytes == 0) work.commands.push_back({{"STRLEN", key}, {}});
  if (work.bytes == 0) return;
  const std::uint64_t last = request.offset + work.bytes - 1;
  work.commands.push_back({{"GETRANGE", key, std::to_string(request.offset), std::to_string(last)}, {}});
}

void RedisTarget::submit(std::span<const Request> requests) {
  const base::Nanos deadline = steady_now() + options_.request_timeout;
  for (const Request& request : requests) {
    const std::uint64_t size = request.content.size();
    if (request.verb == Verb::kWrite && (size == 0 || size > options_.shard_bytes)) {
      done_.push_back({request.tag, Outcome::kTooLarge, 0});
      continue;
    }
    const std::uint64_t id = ++last_id_;
    Work work;
    work.request = request;
    work.deadline = deadline;
    prepare(work);
    works_.emplace(id, std::move(work));
    auto& lane = lanes_[request.name];
    lane.push_back(id);
    if (lane.size() == 1) launch(id);
  }
  earliest_ = std::min(earliest_, deadline);
  pump();
  arm();
}

std::size_t RedisTarget::poll(std::vector<Completion>& completed) {
  pump();
  const std::size_t count = done_.size();
  completed.insert(completed.end(), done_.begin(), done_.end());
  done_.clear();
  arm();
  return count;
}

void RedisTarget::cancel(std::uint64_t tag) {
  for (auto& [key, work] : works_) {
    if (work.ours || work.request.tag != tag) continue;
    if (work.sent && work.request.verb != Verb::kRead) continue;
    finish(std::uint64_t{key}, {0, Outcome::kCancelled, 0});
    break;
  }
  arm();
}

RedisTarget::Node& RedisTarget::node(const std::string& name) {
  auto& found = nodes_[name];
  if (!found) {
    found = std::make_unique<Node>(
        Node{RedisNode(name, options_.connect_timeout, options_.backoff_max, options_.login), {}, 0, 0});
  }
  return *found;
}

void RedisTarget::launch(std::uint64_t id) {
  Work& work = works_.at(id);
  if (!work.fixed_node.empty()) return place(id, work, work.fixed_node);
  if (!mapped_) return unplaced_.push_back(id);
  const std::string& name = cluster_ ? map_.node_of(work.slot) : options_.servers.front();
  if (!name.empty()) return place(id, work, name);
  // A slot that nobody serves: any node says what is the matter with it, or who has it now.
  map_wanted_ = true;
  place(id, work, options_.servers[map_turn_ % options_.servers.size()]);
}

void RedisTarget::place(std::uint64_t id, Work& work, const std::string& name) {
  Node& there = node(name);
  if (there.link.resting(steady_now())) {
    trouble_ = there.link.trouble();
    map_wanted_ = map_wanted_ || cluster_;
    return finish(id, {0, Outcome::kFailed, 0});
  }
  work.node = name;
  there.waiting.push_back(id);
  moved_on_ = true;
}

void RedisTarget::leave_node(Work& work) {
  if (work.node.empty()) return;
  Node& there = node(work.node);
  if (work.sent) {
    --there.requests;
    there.bytes -= work.bytes;
  }
  work.sent = false;
  work.node.clear();
}

void RedisTarget::finish(std::uint64_t id, Completion completion) {
  const auto found = works_.find(id);
  Work work = std::move(found->second);
  if (!work.node.empty() && !work.sent) std::erase(node(work.node).waiting, id);
  leave_node(work);
  std::erase(unplaced_, id);
  std::erase_if(paused_, [id](const auto& entry) { return entry.second == id; });
  works_.erase(found);
  if (work.ours) {
    if (id == map_work_) {
      map_work_ = 0;
      return;
    }
    answers_[id] = completion.outcome == Outcome::kDone ? std::move(work.replies) : std::vector<Reply>{};
    return;
  }
  completion.tag = work.request.tag;
  done_.push_back(completion);
  const auto lane = lanes_.find(work.request.name);
  std::erase(lane->second, id);
  if (lane->second.empty()) {
    lanes_.erase(lane);
    return;
  }
  // The next of this shard, unless it is on its way already.
  const std::uint64_t next = lane->second.front();
  Work& heir = works_.at(next);
  const bool paused =
      std::ranges::any_of(paused_, [next](const auto& entry) { return entry.second == next; });
  if (heir.node.empty() && !paused && std::ranges::find(unplaced_, next) == unplaced_.end()) launch(next);
}

void RedisTarget::pump() {
  const base::Nanos now = steady_now();
  expire(now);
  resume(now);
  for (int round = 0; round < 8; ++round) {
    moved_on_ = false;
    learn_map(now);
    for (auto& [name, there] : nodes_) {
      fill(*there);
      if (there->link.state() == RedisNode::State::kDown && there->link.under_way() == 0) continue;
      const bool well = there->link.advance(now, [this](std::uint64_t ticket, Reply reply) {
        const auto found = works_.find(ticket);
        if (found == works_.end()) return;  // ASKING, or cancelled
        found->second.replies.push_back(std::move(reply));
        if (found->second.replies.size() == found->second.commands.size()) settle(ticket);
      });
      if (!well) broken(name, *there);
    }
    if (!moved_on_) break;
  }
  watch();
}

void RedisTarget::fill(Node& there) {
  while (!there.waiting.empty() && there.requests < options_.pipeline_requests &&
         (there.bytes == 0 || there.bytes < options_.pipeline_bytes)) {
    const std::uint64_t id = there.waiting.front();
    there.waiting.pop_front();
    Work& work = works_.at(id);
    work.sent = true;
    work.replies.clear();
    ++there.requests;
    there.bytes += work.bytes;
    for (const RedisCommand& command : work.commands) {
      if (work.asking) there.link.send({{"ASKING"}, {}}, 0);
      there.link.send(command, id);
    }
    work.asking = false;
  }
}

void RedisTarget::broken(const std::string& name, Node& there) {
  trouble_ = there.link.trouble();
  map_wanted_ = map_wanted_ || cluster_ || !mapped_;
  const auto fail = [this, &name](std::uint64_t id) {
    const auto found = works_.find(id);
    if (found != works_.end() && found->second.node == name) finish(id, {0, Outcome::kFailed, 0});
  };
  for (const std::uint64_t id : there.link.lost()) fail(id);
  while (!there.waiting.empty()) fail(there.waiting.front());
}

void RedisTarget::settle(std::uint64_t id) {
  Work& work = works_.at(id);
  for (const Reply& reply : work.replies) {
    if (reply->type != REDIS_REPLY_ERROR) continue;
    if (id != map_work_ && work.fixed_node.empty() &&
        redirect(id, work, std::string_view(reply->str, reply->len)))
      return;
    break;
  }
  if (work.ours) {
    if (id == map_work_) map_arrived(work.fixed_node, *work.replies.front());
    return finish(id, {0, Outcome::kDone, 0});
  }
  const Completion completion = outcome_of(work);
  finish(id, completion);
}

/// True when the work goes on elsewhere or later.
bool RedisTarget::redirect(std::uint64_t id, Work& work, std::string_view error) {
  Redirection told = parse_redirection(error, work.node);
  // A master that became a replica: the map is old.
  if (error.starts_with("READONLY")) told.kind = Redirection::Kind::kWait;
  if (told.kind == Redirection::Kind::kNone || ++work.redirections > kRedirectionsMax) return false;
  if (told.kind != Redirection::Kind::kAsk) map_wanted_ = true;
  if (told.kind == Redirection::Kind::kWait) {
    const base::Nanos now = steady_now();
    if (work.give_up == base::Nanos{0}) work.give_up = now + options_.wait_patience;
    if (now >= work.give_up) return false;
    --work.redirections;
    ++stats_.waited;
    leave_node(work);
    paused_.emplace(now + options_.wait_pause, id);
    return true;
  }
  cluster_ = mapped_ = true;
  leave_node(work);
  work.asking = told.kind == Redirection::Kind::kAsk;
  if (work.asking) {
    ++stats_.asked;
  } else {
    ++stats_.moved;
    map_.assign(told.slot, told.slot, told.node);
  }
  place(id, work, told.node);
  return true;
}

Completion RedisTarget::outcome_of(Work& work) {
  const Request& request = work.request;
  const redisReply& last = *work.replies.back();
  for (const Reply& reply : work.replies) {
    if (reply->type != REDIS_REPLY_ERROR) continue;
    const std::string_view text(reply->str, reply->len);
    if (text.starts_with("OOM") && request.verb == Verb::kWrite) return {0, Outcome::kFull, 0};
    trouble_ = fmt::format("redis {}: {}", work.node, text);
    return {0, Outcome::kFailed, 0};
  }
  trouble_.clear();
  if (request.verb == Verb::kWrite) {
    caller_bytes_written_ += request.content.size();
    touched_.insert(request.name);
    held(request.name, static_cast<std::uint32_t>(request.content.size()));
    return {0, Outcome::kDone, request.content.size()};
  }
  if (request.verb == Verb::kErase) {
    touched_.insert(request.name);
    gone(request.name);
    return {0, last.integer > 0 ? Outcome::kDone : Outcome::kMissing, 0};
  }
  const redisReply& first = *work.replies.front();
  const bool has_length = first.type == REDIS_REPLY_INTEGER;
  const std::uint64_t arrived = last.type == REDIS_REPLY_STRING ? last.len : 0;
  const auto length = has_length ? static_cast<std::uint64_t>(first.integer) : request.offset + arrived;
  if (length == 0 || (arrived == 0 && length > request.offset && work.bytes > 0)) {
    // Erased by somebody, lost by a failover, or never there.
    if (length == 0 && known_.contains(request.name)) {
      ++stats_.corrected;
      touched_.insert(request.name);
      gone(request.name);
    }
    return {0, Outcome::kMissing, 0};
  }
  if (length < request.offset) return {0, Outcome::kTooLarge, 0};
  const std::uint64_t bytes = std::min<std::uint64_t>(arrived, request.buffer.size());
  if (bytes > 0) std::memcpy(request.buffer.data(), last.str, bytes);
  return {0, Outcome::kDone, bytes};
}

}  // namespace trimtab::kv_remote
