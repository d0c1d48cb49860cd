#pragma once

#include <set>

#include "kv_remote/net/target_server.h"

namespace trimtab::kv_remote {

/// What the server keeps of one client.
struct TargetServer::Connection {
  Connection(std::uint64_t number, Descriptor fd, base::Nanos now)
      : id(number), socket(std::move(fd)), since(now), stream(kControlBytesMax) {}

  std::uint64_t id = 0;
  Descriptor socket;
  base::Nanos since;
  FrameStream stream;
  SendQueue out;
  Hello hello;
  bool greeted = false, broken = false, ending = false;
  std::uint32_t watched = 0;  // events that epoll was asked for

  /// Credit, counted from the beginning of the connection as both sides do.
  std::uint64_t granted_requests = 0, granted_bytes = 0;  // what the client may have drawn
  std::uint64_t drawn_requests = 0, drawn_bytes = 0;
  std::uint64_t free_requests = 0, free_bytes = 0;  // given back, to be granted anew
  std::uint64_t held_bytes = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> costs;  // of answers on their way, by token
  std::set<std::uint64_t> questions;                       // answers to questions on their way, by token
  std::uint64_t last_token = 0;

  std::unique_ptr<std::byte[]> arriving;                       // content of the write that arrives
  std::vector<std::byte> control;                              // content of a hello or a question
  std::unordered_map<std::uint64_t, std::uint64_t> under_way;  // the client's tag: ours
};

}  // namespace trimtab::kv_remote
