#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/profile.h"
#include "text/chat.h"
#include "vision/image_header.h"

namespace trimtab::gateway {

/// Which API a client speaks: how its errors and answers are worded.
enum class Api : std::uint8_t { kOpenAi, kAnthropic };

/// An image as it came, its size read from its header; nothing is decoded here.
struct ImageInput {
  std::vector<std::uint8_t> bytes;
  vision::ImageHeader header;
  std::uint32_t tokens = 0;
  std::uint32_t patches = 0;
};

/// A validated request in no API's words.
struct ChatRequest {
  std::string model;
  text::Conversation conversation;  // `ImagePart::image` indexes `images`
  std::vector<ImageInput> images;
  bool continues = false;  // the last message is the beginning of the answer
  double temperature = 1.0;
  double top_p = 1.0;
  std::optional<std::uint64_t> seed;         // absent: drawn by the gateway
  std::optional<std::int64_t> output_limit;  // >= 1; absent: what the context leaves
  std::vector<std::string> stops;
  std::string cache_scope;  // who may share what is computed for it (cache_scope.h); empty: everybody
  bool stream = false;
  bool include_usage = false;  // OpenAI: a last chunk with the usage
};

/// What validation needs to know of the served model.
struct RequestLimits {
  std::string model;
  model::VisionSpec vision;
  std::int64_t images_max = 0;  // per request
};

}  // namespace trimtab::gateway
