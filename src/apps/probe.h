#pragma once

#include <cstdint>
#include <string>

namespace trimtab::apps {

/// The status of `GET path`, or 0 when nothing answers within a second.
int http_status(const std::string& host, std::uint16_t port, const std::string& path);

/// Status and body; a body of at most 16 MiB.
struct HttpAnswer {
  int status = 0;
  std::string body;
};
HttpAnswer http_get(const std::string& host, std::uint16_t port, const std::string& path,
                    int timeout_seconds = 5);

}  // namespace trimtab::apps
