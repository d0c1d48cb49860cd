#include "vision/image_header.h"

/// Any bytes: an error, or a size within the limits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = trimtab::vision::image_header(std::as_bytes(std::span{data, size}));
  const trimtab::vision::ImageLimits limits;
  if (header && (header->width == 0 || header->height == 0 || header->width > limits.side_max))
    __builtin_trap();
  return 0;
}
