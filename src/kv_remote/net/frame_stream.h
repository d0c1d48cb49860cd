#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "kv_remote/net/frame_parser.h"

namespace trimtab::kv_remote {

/// Reads frames from a non-blocking socket: contents straight to their places, what comes behind them through
/// a small buffer, so that a header does not cost a system call of its own.
class FrameStream {
 public:
  enum class State : std::uint8_t {
    kDry,     // the socket has no more
    kBusy,    // it may have more; others should have their turn first
    kEnded,   // the peer closed
    kBroken,  // `trouble()`
  };
  explicit FrameStream(std::uint64_t content_bytes_max) : parser_(content_bytes_max), staging_(16U << 10) {}

  /// `place(header) -> span` says where a content goes; a span of another size than the content's refuses it.
  /// `take(header) -> bool` gets whole frames; false ends the connection.
  template <class Place, class Take>
  State receive(int fd, Place place, Take take) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::span<std::byte> room = parser_.room();
      iovec pieces[2] = {{room.data(), room.size()}, {staging_.data(), staging_.size()}};
      const ssize_t got = ::readv(fd, pieces, 2);
      if (got == 0) return State::kEnded;
      if (got < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return State::kDry;
        trouble_ = std::strerror(errno);
        return State::kBroken;
      }
      bytes_ += static_cast<std::uint64_t>(got);
      const std::size_t straight = std::min(static_cast<std::size_t>(got), room.size());
      if (!step(straight, place, take)) return State::kBroken;
      std::span<const std::byte> rest(staging_.data(), static_cast<std::size_t>(got) - straight);
      while (!rest.empty()) {
        const std::span<std::byte> next = parser_.room();
        const std::size_t piece = std::min(rest.size(), next.size());
        std::memcpy(next.data(), rest.data(), piece);
        rest = rest.subspan(piece);
        if (!step(piece, place, take)) return State::kBroken;
      }
      if (static_cast<std::size_t>(got) < room.size()) return State::kDry;
    }
    return State::kBusy;
  }

  FrameParser& parser() { return parser_; }
  const std::string& trouble() const { return trouble_.empty() ? parser_.trouble() : trouble_; }
  void refuse(std::string why) { trouble_ = std::move(why); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr int kTurns = 16;

  template <class Place, class Take>
  bool step(std::size_t bytes, Place& place, Take& take) {
    switch (parser_.filled(bytes)) {
      case FrameParser::Event::kMore:
        return true;
      case FrameParser::Event::kFrame:
        return take(parser_.header());
      case FrameParser::Event::kBroken:
        return false;
      case FrameParser::Event::kHeader:
        break;
    }
    const std::span<std::byte> destination = place(parser_.header());
    if (destination.size() != parser_.header().length) return false;
    parser_.content_to(destination);
    return true;
  }

  FrameParser parser_;
  std::vector<std::byte> staging_;
  std::string trouble_;
  std::uint64_t bytes_ = 0;
};

}  // namespace trimtab::kv_remote
