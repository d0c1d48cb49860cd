#include "base/error.h"

#include "base/check.h"

namespace trimtab::base {

namespace {

struct Row {
  Code code;
  std::string_view name;
  int http_status;
};

constexpr Row kRows[] = {
    {Code::kInvalidArgument, "invalid_argument", 400},
    {Code::kUnauthenticated, "unauthenticated", 401},
    {Code::kNotFound, "not_found", 404},
    {Code::kTooLarge, "too_large", 413},
    {Code::kUnsupported, "unsupported", 400},
    {Code::kResourceExhausted, "resource_exhausted", 429},
    {Code::kOverloaded, "overloaded", 503},
    {Code::kUnavailable, "unavailable", 503},
    {Code::kDeadlineExceeded, "deadline_exceeded", 504},
    {Code::kCancelled, "cancelled", 499},
    {Code::kDataLoss, "data_loss", 500},
    {Code::kIo, "io", 500},
    {Code::kInternal, "internal", 500},
};

const Row& row(Code code) {
  for (const Row& candidate : kRows) {
    if (candidate.code == code) return candidate;
  }
  check_failed("code is in the table", __FILE__, __LINE__);
}

}  // namespace

int http_status(Code code) { return row(code).http_status; }

std::string_view name(Code code) { return row(code).name; }

std::string to_string(const Error& error) {
  std::string out{name(error.code)};
  out += ": ";
  out += error.message;
  if (!error.origin.empty()) out += " (" + error.origin + ")";
  return out;
}

}  // namespace trimtab::base
