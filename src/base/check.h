#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace trimtab::base {

/// Prints the broken promise and aborts. A broken promise is a programmer's error; operating errors are
/// `Result`s.
[[noreturn]] inline void check_failed(const char* condition, const char* file, int line,
                                      const std::string& message = {}) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed%s%s\n", file, line, condition, message.empty() ? "" : ": ",
               message.c_str());
  std::abort();
}

}  // namespace trimtab::base

/// Aborts, in production too, when `condition` does not hold. An optional second argument says which value
/// broke it.
#define TRIMTAB_CHECK(condition, ...)                                                           \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::trimtab::base::check_failed(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
