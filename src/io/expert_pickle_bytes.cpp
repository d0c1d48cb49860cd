#include "io/expert_pickle_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/expert_pickle_names.h"

namespace trimtab::io {

void PickleBytes::fail(std::string message, base::Code code) {
  if (!failure_) failure_ = base::Error{code, std::move(message), "pickle"};
}

std::span<const std::byte> PickleBytes::take(std::uint64_t n) {
  if (failed()) return {};
  if (n > bytes_.size() - at_) {
    fail(fmt::format("the pickle is cut short at byte {} of {}", at_, bytes_.size()));
    return {};
  }
  const auto out = bytes_.subspan(at_, n);
  at_ += n;
  return out;
}

std::uint64_t PickleBytes::number(std::size_t n) {
  const auto raw = take(n);
  std::uint64_t out = 0;
  for (std::size_t i = raw.size(); i-- > 0;) out = out << 8 | std::to_integer<std::uint64_t>(raw[i]);
  return out;
}

std::string PickleBytes::text(std::uint64_t n) {
  const auto raw = take(n);
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

std::string PickleBytes::line() {
  const auto rest = bytes_.subspan(at_, std::min(bytes_.size() - at_, kPickleNameBytesMax));
  const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
  if (end == rest.end()) {
    fail(fmt::format("a name without an end at byte {}", at_));
    return {};
  }
  std::string out = text(static_cast<std::size_t>(end - rest.begin()));
  ++at_;
  return out;
}

}  // namespace trimtab::io
