#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "gateway/chat_request.h"

namespace trimtab::gateway {

/// Strict base64 (RFC 4648; white space is skipped, padding may be missing). Error: kInvalidArgument.
base::Result<std::vector<std::uint8_t>> decode_base64(std::string_view text);

/// Adds an image given as base64 to the request and returns its placeholder part. Width and height come from
/// the file's header, tokens and patches from the model's formula. Errors name `where`: too many images,
/// broken base64, not an image, another type than declared, 0x0 or too large, a model without vision.
base::Result<text::ImagePart> add_image(ChatRequest& request, const RequestLimits& limits,
                                        std::string_view media_type, std::string_view base64,
                                        const std::string& where);

/// The same for a URL: "data:image/png;base64,..." is read, http(s) is refused (kUnsupported), because a
/// gateway that fetches what clients name can be sent anywhere.
base::Result<text::ImagePart> add_image_url(ChatRequest& request, const RequestLimits& limits,
                                            std::string_view url, const std::string& where);

}  // namespace trimtab::gateway
