#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kv_remote/net/frame.h"

namespace trimtab::kv_remote {

/// Cuts frames out of bytes that arrive in any pieces. It says where the next bytes go, so that a content is
/// received straight into the memory it is meant for. Knows no socket.
class FrameParser {
 public:
  enum class Event : std::uint8_t {
    kMore,    // fill `room()` further
    kHeader,  // a content follows: say where it goes with `content_to`, then go on
    kFrame,   // `header()` and its content are whole and right
    kBroken,  // `trouble()` says why; no byte after this can be trusted
  };
  /// A longer content than `content_bytes_max` is a broken peer.
  explicit FrameParser(std::uint64_t content_bytes_max) : content_bytes_max_(content_bytes_max) {}

  std::span<std::byte> room();
  /// So many bytes of `room()` were filled.
  Event filled(std::size_t bytes);
  /// `destination` has exactly `header().length` bytes.
  void content_to(std::span<std::byte> destination);

  const Header& header() const { return header_; }
  /// True while the content of `header()` is on its way.
  bool in_content() const { return state_ == State::kContent; }
  const std::string& trouble() const { return trouble_; }
  void allow(std::uint64_t content_bytes_max) { content_bytes_max_ = content_bytes_max; }

 private:
  enum class State : std::uint8_t { kHeader, kPlace, kContent, kBroken };
  Event broken(std::string why);
  Event header_arrived();

  std::uint64_t content_bytes_max_;
  State state_ = State::kHeader;
  HeaderBytes bytes_{};
  std::size_t have_ = 0;  // of the header, or of the content
  std::uint64_t frame_number_ = 0;
  Header header_;
  std::span<std::byte> content_;
  std::string trouble_;
};

}  // namespace trimtab::kv_remote
