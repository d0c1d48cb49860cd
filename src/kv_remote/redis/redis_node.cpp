#include "kv_remote/redis/redis_node.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace trimtab::kv_remote {

namespace {

std::string head_of(const RedisCommand& command) {
  std::string text = fmt::format("*{}\r\n", command.words.size() + (command.content.empty() ? 0 : 1));
  for (const std::string& word : command.words) text += fmt::format("${}\r\n{}\r\n", word.size(), word);
  return text;
}

}  // namespace

/// Before all that was queued while there was no connection.
void RedisNode::log_in() {
  if (login_.password.empty()) return;
  RedisCommand command{{"AUTH"}, {}};
  if (!login_.user.empty()) command.words.push_back(login_.user);
  command.words.push_back(login_.password);
  pieces_.push_front({head_of(command), {}});
  tickets_.push_front(kLogin);
}

bool RedisNode::admitted(const redisReply& reply, std::uint64_t ticket, base::Nanos now) {
  if (reply.type != REDIS_REPLY_ERROR) return true;
  const std::string_view text(reply.str, reply.len);
  const bool unasked = text.starts_with("NOAUTH");
  if (!unasked && ticket != kLogin) return true;
  lost_.push_back(ticket);
  close(unasked
            ? "wants a password: name it as redis://user:password@host:port, or in TRIMTAB_REDIS_PASSWORD or "
              "the file of TRIMTAB_REDIS_PASSWORD_FILE"
            : fmt::format("refuses the login of {}: {}",
                          login_.user.empty() ? "its default user" : "user " + login_.user, text),
        now);
  return false;
}

void RedisNode::send(const RedisCommand& command, std::uint64_t ticket) {
  std::string text = head_of(command);
  if (!command.content.empty()) text += fmt::format("${}\r\n", command.content.size());
  // Short commands in a row become one piece. The first may be half sent, which does not matter to its end.
  if (!pieces_.empty() && !pieces_.back().text.empty() && pieces_.back().text.size() < 4'096) {
    pieces_.back().text += text;
  } else {
    pieces_.push_back({std::move(text), {}});
  }
  if (!command.content.empty()) {
    pieces_.push_back({{}, command.content});
    pieces_.push_back({"\r\n", {}});
  }
  tickets_.push_back(ticket);
}

void RedisNode::close(std::string why, base::Nanos now) {
  trouble_ = fmt::format("redis {}: {}", address_, why);
  const base::Nanos first{50'000'000};
  backoff_ = state_ == State::kUp ? first : std::clamp(backoff_ * 2, first, backoff_max_);
  retry_at_ = now + backoff_;
  state_ = State::kDown;
  abort_connection(socket_);
  reader_.reset();
  pieces_.clear();
  sent_ = 0;
  replies_.clear();
  lost_.insert(lost_.end(), tickets_.begin(), tickets_.end());
  tickets_.clear();
  watched = 0;
}

bool RedisNode::connect(base::Nanos now) {
  if (state_ == State::kUp) return true;
  if (state_ == State::kDown) {
    if (now < retry_at_) {
      lost_.insert(lost_.end(), tickets_.begin(), tickets_.end());
      tickets_.clear();
      pieces_.clear();
      return lost_.empty();
    }
    auto address = resolve(address_);
    auto socket = address ? begin_connect(*address) : tl::unexpected<base::Error>(address.error());
    if (!socket) return close(socket.error().message, now), false;
    socket_ = std::move(*socket);
    reader_.reset(redisReaderCreate());
    log_in();
    state_ = State::kConnecting;
    connect_deadline_ = now + connect_timeout_;
  }
  pollfd ready{socket_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) {
    if (now < connect_deadline_) return true;
    return close("does not answer", now), false;
  }
  if (const int error = socket_error(socket_.get()); error != 0)
    return close(std::strerror(error), now), false;
  state_ = State::kUp;
  ++connects_;
  return true;
}

bool RedisNode::flush() {
  while (state_ == State::kUp && !pieces_.empty()) {
    std::array<iovec, 64> parts;
    std::size_t count = 0;
    for (auto it = pieces_.begin(); it != pieces_.end() && count < parts.size(); ++it) {
      const auto bytes = it->text.empty() ? it->content : std::as_bytes(std::span(it->text));
      const std::size_t skip = count == 0 ? sent_ : 0;
      parts[count++] = {const_cast<std::byte*>(bytes.data()) + skip, bytes.size() - skip};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t got = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      return close(std::strerror(errno), steady_now()), false;
    }
    sent_ += static_cast<std::size_t>(got);
    while (!pieces_.empty()) {
      const Piece& piece = pieces_.front();
      const std::size_t size = piece.text.empty() ? piece.content.size() : piece.text.size();
      if (sent_ < size) break;
      sent_ -= size;
      pieces_.pop_front();
    }
  }
  return true;
}

bool RedisNode::receive() {
  input_.resize(256U << 10);
  while (state_ == State::kUp) {
    const ssize_t got = ::recv(socket_.get(), input_.data(), input_.size(), MSG_DONTWAIT);
    if (got == 0) return close("closed the connection", steady_now()), false;
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      return close(std::strerror(errno), steady_now()), false;
    }
    if (redisReaderFeed(reader_.get(), input_.data(), static_cast<std::size_t>(got)) != REDIS_OK)
      return close(reader_->errstr, steady_now()), false;
    for (void* reply = nullptr;;) {
      if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK)
        return close(fmt::format("speaks no Redis: {}", reader_->errstr), steady_now()), false;
      if (reply == nullptr) break;
      if (replies_.size() >= tickets_.size()) {
        freeReplyObject(reply);
        return close("answers what was not asked", steady_now()), false;
      }
      replies_.emplace_back(static_cast<redisReply*>(reply));
    }
    if (static_cast<std::size_t>(got) < input_.size()) return true;
  }
  return true;
}

}  // namespace trimtab::kv_remote
