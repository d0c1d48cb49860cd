#include "base/duration_text.h"

#include <gtest/gtest.h>

namespace trimtab::base {
namespace {

TEST(DurationText, ThreeDigitsOrSo) {
  const std::pair<std::int64_t, const char*> cases[] = {
      {0, "0 ms"},
      {37'000, "0.0 ms"},
      {347'000, "0.3 ms"},
      {9'949'999, "9.9 ms"},
      {9'950'001, "10 ms"},
      {296'400'000, "296 ms"},
      {1'175'700'000, "1176 ms"},
      {9'999'499'999, "9999 ms"},
      {9'999'500'001, "10 s"},
      {12'500'000'000, "12.5 s"},
      {600'000'000'000, "600 s"},
      {-2'500'000, "-2.5 ms"},
      {INT64_MAX, "no limit"},
  };
  for (const auto& [nanos, text] : cases) EXPECT_EQ(duration_text(Nanos{nanos}), text) << nanos;
}

}  // namespace
}  // namespace trimtab::base
