#include <fmt/format.h>

#include "base/codec.h"
#include "kv_remote/net/server_connection.h"

/// What one frame of a client means to the server.
namespace trimtab::kv_remote {

namespace {
constexpr std::size_t kClientsKept = 4'096;
constexpr std::size_t kQuestionsMax = 8;  // of one connection; a client of ours has one at a time
}  // namespace

/// Where a content goes; an empty span refuses the connection.
std::span<std::byte> TargetServer::place(Connection& connection, const Header& header) {
  if (header.kind == Kind::kWrite && connection.greeted) {
    // Before the memory is taken: credit is what bounds it.
    if (header.length > target_.limits().shard_bytes || !draw(connection, header.length)) return {};
    connection.arriving = std::make_unique_for_overwrite<std::byte[]>(header.length);
    return {connection.arriving.get(), header.length};
  }
  const bool fits = header.length <= kControlBytesMax;
  if (!fits || (header.kind != Kind::kHello && header.kind != Kind::kChanges)) {
    connection.stream.refuse("a content where none belongs");
    return {};
  }
  connection.control.resize(header.length);
  return connection.control;
}

bool TargetServer::draw(Connection& connection, std::uint64_t bytes) {
  if (connection.drawn_requests + 1 > connection.granted_requests ||
      connection.drawn_bytes + bytes > connection.granted_bytes) {
    ++stats_.credit_overdrawn;
    connection.stream.refuse("more than the credit that was granted");
    return false;
  }
  ++connection.drawn_requests;
  connection.drawn_bytes += bytes;
  connection.held_bytes += bytes;
  stats_.memory_bytes_peak = std::max(stats_.memory_bytes_peak, connection.held_bytes);
  return true;
}

bool TargetServer::take(Connection& connection, const Header& header) {
  if (connection.ending) return true;
  if (!connection.greeted) return greet(connection, header);
  switch (header.kind) {
    case Kind::kRead:
    case Kind::kErase:
    case Kind::kWrite:
      return request(connection, header);
    case Kind::kCancel: {
      const auto found = connection.under_way.find(header.tag);
      if (found != connection.under_way.end()) {
        submit();  // the target must know it before it can give it up
        target_.cancel(found->second);
      }
      return true;
    }
    case Kind::kChanges:
    case Kind::kSpace:
      return question(connection, header);
    case Kind::kHello:
    case Kind::kWelcome:
    case Kind::kRefused:
    case Kind::kAnswer:
    case Kind::kGrant:
      break;
  }
  connection.stream.refuse(fmt::format("a frame of kind {} from a client", static_cast<int>(header.kind)));
  return false;
}

/// False when a newer session of this client is known.
bool TargetServer::drops_elders(const Hello& hello, const Connection& self) {
  const auto [known, fresh] = sessions_.emplace(hello.client, hello.session);
  if (!fresh && known->second >= hello.session) return false;
  known->second = hello.session;
  if (fresh) {
    clients_.push_back(hello.client);
    if (clients_.size() > kClientsKept) {
      sessions_.erase(clients_.front());
      clients_.pop_front();
    }
  }
  for (const auto& [id, other] : connections_)
    if (other.get() != &self && other->greeted && other->hello.client == hello.client) other->broken = true;
  return true;
}

bool TargetServer::greet(Connection& connection, const Header& header) {
  const auto hello = base::decode<Hello>(connection.control);
  std::string why;
  if (header.version != kFrameVersion) {
    why = fmt::format("this server speaks version {}, the client {}: update the older one", kFrameVersion,
                      header.version);
  } else if (header.kind != Kind::kHello || !hello) {
    return false;
  } else if (!drops_elders(*hello, connection)) {
    why = fmt::format("session {} of client {:x} is not newer than the last one", hello->session,
                      hello->client);
  }
  Header answer;
  if (!why.empty()) {
    ++stats_.refused;
    answer.kind = Kind::kRefused;
    connection.out.push_copy(answer, encode_text(why));
    connection.ending = true;
    return true;
  }
  connection.hello = *hello;
  connection.control.clear();
  connection.greeted = true;
  connection.granted_requests = options_.credit_requests;
  connection.granted_bytes = options_.credit_bytes;
  const auto shard_bytes = target_.limits().shard_bytes;
  connection.stream.parser().allow(std::max(shard_bytes, kControlBytesMax));
  Welcome welcome;
  welcome.epoch = options_.epoch;
  welcome.shard_bytes = shard_bytes;
  welcome.credit_bytes = options_.credit_bytes;
  welcome.credit_requests = options_.credit_requests;
  welcome.durable = target_.durable();
  answer.kind = Kind::kWelcome;
  connection.out.push_copy(answer, base::encode(welcome));
  return true;
}

bool TargetServer::request(Connection& connection, const Header& header) {
  Pending pending;
  pending.connection = connection.id;
  pending.question = header;
  kv_target::Request request;
  request.name = header.name;
  request.tag = ++last_id_;
  if (header.kind == Kind::kWrite) {
    if (header.length == 0) return false;  // clients refuse it themselves
    ++stats_.writes;
    pending.cost_bytes = header.length;
    pending.memory = std::move(connection.arriving);
    request.verb = kv_target::Verb::kWrite;
    request.content = {pending.memory.get(), header.length};
  } else if (header.kind == Kind::kRead) {
    ++stats_.reads;
    if (header.bytes > target_.limits().shard_bytes || !draw(connection, header.bytes)) return false;
    pending.cost_bytes = header.bytes;
    pending.memory = std::make_unique_for_overwrite<std::byte[]>(header.bytes);
    request.verb = kv_target::Verb::kRead;
    request.offset = header.offset;
    request.buffer = {pending.memory.get(), header.bytes};
  } else {
    ++stats_.erases;
    if (!draw(connection, 0)) return false;
    request.verb = kv_target::Verb::kErase;
  }
  if (!connection.under_way.emplace(header.tag, request.tag).second) {
    connection.stream.refuse(fmt::format("tag {} is under way already", header.tag));
    connection.held_bytes -= pending.cost_bytes;
    return false;
  }
  pending_.emplace(request.tag, std::move(pending));
  incoming_.push_back(request);
  return true;
}

/// Outside the credit: a client asks one question at a time, and answers are small.
bool TargetServer::question(Connection& connection, const Header& header) {
  if (connection.questions.size() >= kQuestionsMax) {
    connection.stream.refuse("more questions than are answered");
    return false;
  }
  ++stats_.questions;
  submit();
  Header answer;
  answer.kind = Kind::kAnswer;
  answer.tag = header.tag;
  std::vector<std::byte> bytes;
  if (header.kind == Kind::kSpace) {
    const auto space = target_.space();
    answer.outcome = space ? kv_target::Outcome::kDone : kv_target::Outcome::kFailed;
    bytes = space ? encode(SpaceAnswer{*space, condition_of(target_)}) : encode_text(space.error().message);
  } else {
    const auto asked = base::decode<ChangesQuestion>(connection.control);
    if (!asked) return false;
    const auto changes = target_.changes(asked->since, std::min(asked->limit, kChangesPerPage));
    answer.outcome = changes ? kv_target::Outcome::kDone : kv_target::Outcome::kFailed;
    bytes = changes ? encode(ChangesAnswer{*changes, condition_of(target_)})
                    : encode_text(changes.error().message);
  }
  connection.questions.insert(++connection.last_token);
  connection.out.push_copy(answer, bytes, connection.last_token);
  connection.control.clear();
  return true;
}

}  // namespace trimtab::kv_remote
