#include "vision/image_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace trimtab::vision {

namespace {

constexpr std::string_view kPng = "image/png";
constexpr std::string_view kJpeg = "image/jpeg";
constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";

tl::unexpected<base::Error> invalid(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "vision");
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Big-endian, as both formats store numbers. The caller checked the extent.
std::uint32_t number(std::span<const std::byte> bytes, std::size_t at, std::size_t width) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + i]);
  return value;
}

/// A PNG begins with its signature and an IHDR chunk: length 13, type, width, height.
base::Result<ImageHeader> png_header(std::span<const std::byte> bytes) {
  constexpr std::size_t kSizeAt = 16;
  if (bytes.size() < kSizeAt + 8)
    return invalid(fmt::format("the PNG ends after {} bytes, inside its header", bytes.size()));
  if (number(bytes, 8, 4) != 13 || as_text(bytes).substr(12, 4) != "IHDR") {
    return invalid("the PNG is broken: it does not begin with an IHDR chunk");
  }
  return ImageHeader{kPng, number(bytes, kSizeAt, 4), number(bytes, kSizeAt + 4, 4)};
}

bool is_start_of_frame(std::uint32_t marker) {  // SOF0..15 without DHT, JPG and DAC
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/// A JPEG is a list of segments; the first start-of-frame segment holds the size.
base::Result<ImageHeader> jpeg_header(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kStartOfScan = 0xDA;
  constexpr std::uint32_t kEndOfImage = 0xD9;
  std::size_t at = 2;
  while (at + 4 <= bytes.size()) {
    if (number(bytes, at, 1) != 0xFF)
      return invalid(fmt::format("the JPEG is broken: no marker at byte {}", at));
    const std::uint32_t marker = number(bytes, at + 1, 1);
    if (marker == 0xFF) {  // fill byte
      ++at;
      continue;
    }
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) {  // markers without a segment
      at += 2;
      continue;
    }
    if (marker == kStartOfScan || marker == kEndOfImage) {
      return invalid("the JPEG is broken: its image data begins before any frame header");
    }
    const std::uint32_t length = number(bytes, at + 2, 2);
    if (length < 2)
      return invalid(fmt::format("the JPEG is broken: a segment of {} bytes at {}", length, at));
    if (is_start_of_frame(marker)) {
      if (length < 8 || at + 9 > bytes.size()) break;
      return ImageHeader{kJpeg, number(bytes, at + 7, 2), number(bytes, at + 5, 2)};
    }
    at += 2 + length;
  }
  return invalid(fmt::format("the JPEG ends after {} bytes, before its frame header", bytes.size()));
}

/// Formats that clients do send, so that the error can name them.
std::optional<std::string_view> other_format(std::string_view text) {
  if (text.starts_with("GIF8")) return "a GIF";
  if (text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP") return "a WebP";
  if (text.starts_with("BM")) return "a BMP";
  if (text.starts_with("%PDF")) return "a PDF";
  if (text.starts_with("<svg") || text.starts_with("<?xml")) return "an SVG or XML file";
  return std::nullopt;
}

base::Result<ImageHeader> any_header(std::span<const std::byte> bytes) {
  const std::string_view text = as_text(bytes);
  if (text.starts_with(kPngSignature)) return png_header(bytes);
  if (text.starts_with("\xFF\xD8\xFF")) return jpeg_header(bytes);
  if (text.empty()) return invalid("the image is empty");
  if (const auto other = other_format(text)) {
    return invalid(fmt::format("the image is {}; PNG and JPEG are supported", *other));
  }
  return invalid("the data is not an image: it begins like neither PNG nor JPEG");
}

}  // namespace

base::Result<ImageHeader> image_header(std::span<const std::byte> bytes, std::string_view declared_media_type,
                                       const ImageLimits& limits) {
  if (declared_media_type == "image/jpg") declared_media_type = kJpeg;  // a common misnomer
  if (!declared_media_type.empty() && declared_media_type != kPng && declared_media_type != kJpeg) {
    return invalid(fmt::format("media type '{}' is not supported: send image/png or image/jpeg",
                               declared_media_type.substr(0, 100)));
  }
  if (bytes.size() > limits.bytes_max) {
    return base::fail(base::Code::kTooLarge,
                      fmt::format("the image has {} bytes, {} are allowed", bytes.size(), limits.bytes_max),
                      "vision");
  }
  const auto header = any_header(bytes);
  if (!header) return header;
  if (!declared_media_type.empty() && header->media_type != declared_media_type) {
    return invalid(fmt::format("the image is declared as {} and its bytes are {}", declared_media_type,
                               header->media_type));
  }
  const auto size = fmt::format("{}x{}", header->width, header->height);
  if (header->width == 0 || header->height == 0) return invalid(fmt::format("the image is {} pixels", size));
  const std::uint64_t pixels = std::uint64_t{header->width} * header->height;
  if (header->width > limits.side_max || header->height > limits.side_max || pixels > limits.pixels_max) {
    return invalid(fmt::format("the image is {} pixels; {} a side and {} in all are allowed: scale it down",
                               size, limits.side_max, limits.pixels_max));
  }
  return header;
}

}  // namespace trimtab::vision
