#include "kv_remote/net/frame_parser.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"

namespace trimtab::kv_remote {

std::span<std::byte> FrameParser::room() {
  switch (state_) {
    case State::kHeader:
      return std::span(bytes_).subspan(have_);
    case State::kContent:
      return content_.subspan(have_);
    case State::kPlace:
    case State::kBroken:
      break;
  }
  return {};
}

FrameParser::Event FrameParser::broken(std::string why) {
  state_ = State::kBroken;
  trouble_ = std::move(why);
  return Event::kBroken;
}

FrameParser::Event FrameParser::header_arrived() {
  auto header = unpack(std::span<const std::byte, kHeaderBytes>(bytes_), frame_number_);
  if (!header) return broken(header.error().message);
  header_ = *header;
  have_ = 0;
  if (header_.length > content_bytes_max_) {
    return broken(fmt::format("frame {} announces {} bytes, over the {} agreed", frame_number_,
                              header_.length, content_bytes_max_));
  }
  ++frame_number_;
  if (header_.length > 0) {
    state_ = State::kPlace;
    return Event::kHeader;
  }
  return header_.content_checksum == 0 ? Event::kFrame : broken("a checksum of no content");
}

FrameParser::Event FrameParser::filled(std::size_t bytes) {
  TRIMTAB_CHECK(bytes <= room().size());
  have_ += bytes;
  if (!room().empty()) return Event::kMore;
  switch (state_) {
    case State::kHeader:
      return header_arrived();
    case State::kContent:
      break;
    case State::kPlace:
      return Event::kHeader;
    case State::kBroken:
      return Event::kBroken;
  }
  if (base::checksum(content_) != header_.content_checksum)
    return broken(fmt::format("content of frame {} is damaged", frame_number_ - 1));
  have_ = 0;
  state_ = State::kHeader;
  return Event::kFrame;
}

void FrameParser::content_to(std::span<std::byte> destination) {
  TRIMTAB_CHECK(state_ == State::kPlace && destination.size() == header_.length);
  content_ = destination;
  state_ = State::kContent;
}

}  // namespace trimtab::kv_remote
