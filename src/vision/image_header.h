#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trimtab::vision {

/// What a prompt needs to know of an image before anyone decodes it.
struct ImageHeader {
  std::string_view media_type;  // image/png or image/jpeg
  std::uint32_t width = 0;      // pixels
  std::uint32_t height = 0;
};

struct ImageLimits {
  std::uint64_t pixels_max = 40'000'000;  // width * height: what decoding may unfold to
  std::uint32_t side_max = 16'384;        // pixels
  std::uint64_t bytes_max = 20ULL << 20;  // of the encoded file
};

/// Reads width and height from the first bytes of a PNG or JPEG; nothing is decoded, so a small file that
/// claims a huge image costs nothing. `declared_media_type` ("" = any) must agree with the bytes. Errors
/// (kInvalidArgument, kTooLarge) name the offending value: not an image, 0x0, beyond the limits, wrong type.
base::Result<ImageHeader> image_header(std::span<const std::byte> bytes,
                                       std::string_view declared_media_type = {},
                                       const ImageLimits& limits = {});

}  // namespace trimtab::vision
