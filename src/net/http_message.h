#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trimtab::net {

struct Header {
  std::string name;
  std::string value;
};
using Headers = std::vector<Header>;

/// The value of the first header of that name (case does not matter), or an empty view.
std::string_view find_header(const Headers& headers, std::string_view name);

/// A request whose body has not been read yet.
struct RequestHead {
  std::string method;
  std::string target;  // as sent: path and query
  Headers headers;
  std::string remote;                           // "address:port" of the peer
  std::optional<std::uint64_t> content_length;  // empty: no body, or a chunked one

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
  /// The target without its query.
  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
};

struct Request : RequestHead {
  std::string body;
};

struct Response {
  int status = 200;
  Headers headers;  // without Content-Length, Connection, Date: the server adds those
  std::string body;
};

/// "Not Found" for 404; "Unknown" for a status without a registered phrase.
std::string_view reason_phrase(int status);

}  // namespace trimtab::net
