#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/codec.h"
#include "base/hash.h"
#include "kv_remote/net/frame_parser.h"

using namespace trimtab::kv_remote;

namespace {

/// Any bytes as a stream of frames, in pieces of any size. What is accepted must carry right checksums.
void parse(const std::uint8_t* data, std::size_t size, std::size_t piece) {
  FrameParser parser(1U << 16);
  std::vector<std::byte> content;
  while (size > 0) {
    const auto room = parser.room();
    if (room.empty()) std::abort();
    const std::size_t bytes = std::min({size, room.size(), piece});
    std::memcpy(room.data(), data, bytes);
    data += bytes;
    size -= bytes;
    switch (parser.filled(bytes)) {
      case FrameParser::Event::kBroken:
        if (parser.trouble().empty()) std::abort();
        return;
      case FrameParser::Event::kHeader:
        if (parser.header().length > (1U << 16)) std::abort();
        content.assign(parser.header().length, std::byte{0});
        parser.content_to(content);
        break;
      case FrameParser::Event::kFrame:
        if (parser.header().length > 0 &&
            trimtab::base::checksum(content) != parser.header().content_checksum)
          std::abort();
        break;
      case FrameParser::Event::kMore:
        break;
    }
  }
}

/// The input as the recipe of frames that are well formed, so that the fuzzer gets past the checksums.
std::vector<std::uint8_t> compose(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> stream;
  for (std::uint64_t number = 0; size >= 32; ++number) {
    Header header;
    header.kind = static_cast<Kind>(data[0]);
    header.version = data[1];
    header.outcome = static_cast<trimtab::kv_target::Outcome>(data[2]);
    header.length = std::min<std::size_t>(data[3], size - 32);
    std::memcpy(&header.tag, data + 4, 8);
    std::memcpy(&header.bytes, data + 12, 8);
    std::memcpy(&header.offset, data + 20, 8);
    const auto content = std::as_bytes(std::span(data + 32, header.length));
    if (header.length > 0) header.content_checksum = trimtab::base::checksum(content);
    const HeaderBytes bytes = pack(header, number);
    const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
    stream.insert(stream.end(), begin, begin + bytes.size());
    stream.insert(stream.end(), data + 32, data + 32 + header.length);
    data += 32 + header.length;
    size -= 32 + header.length;
  }
  return stream;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t piece = 1 + data[0];
  parse(data + 1, size - 1, piece);
  auto stream = compose(data + 1, size - 1);
  parse(stream.data(), stream.size(), piece);
  // A damaged byte anywhere must not get through.
  if (!stream.empty()) {
    stream[data[1] * stream.size() / 256] ^= static_cast<std::uint8_t>(1U << (data[0] % 8));
    parse(stream.data(), stream.size(), piece);
  }
  const auto bytes = std::as_bytes(std::span(data, size));
  (void)decode_changes(bytes);
  (void)decode_space(bytes);
  (void)decode_text(bytes);
  if (const auto condition = decode_condition(bytes); condition && condition->trouble.size() > kTextBytesMax)
    std::abort();
  (void)trimtab::base::decode<Welcome>(bytes);
  return 0;
}
