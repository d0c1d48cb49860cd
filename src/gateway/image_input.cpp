#include "gateway/image_input.h"

#include <fmt/format.h>

#include <array>
#include <span>

#include "policy/vision/image_size.h"

namespace trimtab::gateway {
namespace {

constexpr std::uint8_t kSkip = 0x40, kPad = 0x41, kBroken = 0xff;

constexpr std::array<std::uint8_t, 256> make_alphabet() {
  std::array<std::uint8_t, 256> table{};
  for (auto& entry : table) entry = kBroken;
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < kLetters.size(); ++i)
    table[static_cast<unsigned char>(kLetters[i])] = static_cast<std::uint8_t>(i);
  for (const unsigned char c : {'\n', '\r', ' ', '\t'}) table[c] = kSkip;
  table['='] = kPad;
  return table;
}
constexpr std::array<std::uint8_t, 256> kAlphabet = make_alphabet();

base::Error at(const std::string& where, base::Error error) {
  error.message = where + ": " + error.message;
  error.origin = where;
  // A picture that is too large is a fault of the request, not of its size in bytes.
  if (error.code == base::Code::kTooLarge) error.code = base::Code::kInvalidArgument;
  return error;
}

}  // namespace

base::Result<std::vector<std::uint8_t>> decode_base64(std::string_view text) {
  std::vector<std::uint8_t> out;
  out.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t bits = 0;
  std::size_t letters = 0, padding = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::uint8_t value = kAlphabet[static_cast<unsigned char>(text[i])];
    if (value == kSkip) continue;
    if (value == kPad && ++padding <= 2) continue;
    if (value >= kPad || padding > 0)
      return base::fail(base::Code::kInvalidArgument, fmt::format("broken base64 at character {}", i));
    bits = bits << 6 | value;
    if (++letters % 4 == 0) {
      out.push_back(static_cast<std::uint8_t>(bits >> 16));
      out.push_back(static_cast<std::uint8_t>(bits >> 8));
      out.push_back(static_cast<std::uint8_t>(bits));
    }
  }
  const std::size_t rest = letters % 4;
  if (rest == 1 || (padding > 0 && rest + padding != 4))
    return base::fail(base::Code::kInvalidArgument, "broken base64: it ends in the middle of a byte");
  if (rest == 2) out.push_back(static_cast<std::uint8_t>(bits >> 4));
  if (rest == 3) {
    out.push_back(static_cast<std::uint8_t>(bits >> 10));
    out.push_back(static_cast<std::uint8_t>(bits >> 2));
  }
  return out;
}

base::Result<text::ImagePart> add_image(ChatRequest& request, const RequestLimits& limits,
                                        std::string_view media_type, std::string_view base64,
                                        const std::string& where) {
  if (static_cast<std::int64_t>(request.images.size()) >= limits.images_max)
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("{}: too many images; at most {} are taken per request", where, limits.images_max),
        where);
  if (limits.vision.formula == model::VisionSpec::Formula::kNone)
    return base::fail(base::Code::kUnsupported, where + ": this model takes no images", where);
  ImageInput image;
  auto bytes = decode_base64(base64);
  if (!bytes) return tl::unexpected(at(where, bytes.error()));
  image.bytes = std::move(*bytes);
  const auto header = vision::image_header(std::as_bytes(std::span(image.bytes)), media_type);
  if (!header) return tl::unexpected(at(where, header.error()));
  image.header = *header;
  const auto tokens = policy::image_tokens(limits.vision, header->width, header->height);
  if (!tokens) return tl::unexpected(at(where, tokens.error()));
  const auto patches = policy::image_patches(limits.vision, header->width, header->height);
  if (!patches) return tl::unexpected(at(where, patches.error()));
  image.tokens = static_cast<std::uint32_t>(tokens->value);
  image.patches = static_cast<std::uint32_t>(*patches);
  const text::ImagePart part{static_cast<std::uint32_t>(request.images.size()), image.tokens};
  request.images.push_back(std::move(image));
  return part;
}

base::Result<text::ImagePart> add_image_url(ChatRequest& request, const RequestLimits& limits,
                                            std::string_view url, const std::string& where) {
  constexpr std::string_view kData = "data:", kBase64 = ";base64";
  if (!url.starts_with(kData))
    return base::fail(
        base::Code::kUnsupported,
        where + ": image URLs are not fetched; send the image itself as data:image/png;base64,...", where);
  const std::size_t comma = url.find(',');
  if (comma == std::string_view::npos || !url.substr(0, comma).ends_with(kBase64))
    return base::fail(base::Code::kInvalidArgument,
                      where + ": a data URL must read data:MEDIA_TYPE;base64,DATA", where);
  std::string_view media_type = url.substr(kData.size(), comma - kData.size() - kBase64.size());
  media_type = media_type.substr(0, media_type.find(';'));
  return add_image(request, limits, media_type, url.substr(comma + 1), where);
}

}  // namespace trimtab::gateway
