#include "io/npy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/expert_loads.h"
#include "io/expert_testing.h"
#include "io/npz.h"

namespace trimtab::io {
namespace {

using Shape = std::vector<std::int64_t>;

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string npy_with(const std::string& header_text, const std::string& body, char version = 1) {
  std::string header = header_text + "\n";
  std::string out = std::string(kNpyMagic) + version + '\0';
  out += static_cast<char>(header.size() & 0xFF);
  out += static_cast<char>(header.size() >> 8);
  if (version > 1) out += std::string(2, '\0');
  return out + header + body;
}

std::string header_of(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

base::Result<ExpertArray> npy(const std::string& file, std::int64_t elements_max = 1 << 20) {
  MemorySource source(bytes(file));
  return read_npy(source, elements_max);
}

template <class T>
std::string raw(std::initializer_list<T> values, bool big = false) {
  std::string out;
  for (const T value : values) {
    std::string one(sizeof(T), '\0');
    std::memcpy(one.data(), &value, sizeof(T));
    if (big) std::reverse(one.begin(), one.end());
    out += one;
  }
  return out;
}

TEST(Npy, EveryTypeAndByteOrder) {
  const std::vector<double> expected = {0, 1, 2, 100};
  const auto reads = [&](const std::string& descr, const std::string& body) {
    const auto array = npy(npy_with(header_of(descr, "(2, 2)"), body));
    ASSERT_TRUE(array.has_value()) << descr << ": " << array.error().message;
    EXPECT_EQ(array->values, expected) << descr;
    EXPECT_EQ(array->shape, (Shape{2, 2}));
  };
  reads("|i1", raw<std::int8_t>({0, 1, 2, 100}));
  reads("|u1", raw<std::uint8_t>({0, 1, 2, 100}));
  reads("<i2", raw<std::int16_t>({0, 1, 2, 100}));
  reads("<u2", raw<std::uint16_t>({0, 1, 2, 100}));
  reads("<i4", raw<std::int32_t>({0, 1, 2, 100}));
  reads("<u4", raw<std::uint32_t>({0, 1, 2, 100}));
  reads("<i8", raw<std::int64_t>({0, 1, 2, 100}));
  reads("<u8", raw<std::uint64_t>({0, 1, 2, 100}));
  reads("<f4", raw<float>({0, 1, 2, 100}));
  reads("<f8", raw<double>({0, 1, 2, 100}));
  reads("<f2", raw<std::uint16_t>({0, 0x3C00, 0x4000, 0x5640}));
  reads(">i4", raw<std::int32_t>({0, 1, 2, 100}, true));
  reads(">f8", raw<double>({0, 1, 2, 100}, true));
  EXPECT_EQ(npy(npy_with(header_of("|b1", "(2,)"), std::string("\0\1", 2)))->values,
            (std::vector<double>{0, 1}));
  EXPECT_EQ(npy(npy_with(header_of("<i4", "()"), raw<std::int32_t>({7})))->values, std::vector<double>{7});
  EXPECT_EQ(npy(npy_with(header_of("<i8", "(2, 2)"), raw<std::int64_t>({0, 1, 2, 100}), 2))->values,
            expected);
}

TEST(Npy, HalfPrecisionEdges) {
  const auto array =
      npy(npy_with(header_of("<f2", "(4,)"), raw<std::uint16_t>({0x0001, 0x7BFF, 0x7C00, 0x7E00})));
  ASSERT_TRUE(array.has_value());
  EXPECT_DOUBLE_EQ(array->values[0], std::ldexp(1.0, -24));
  EXPECT_DOUBLE_EQ(array->values[1], 65504);
  EXPECT_TRUE(std::isinf(array->values[2]));
  EXPECT_TRUE(std::isnan(array->values[3]));
}

TEST(Npy, FortranOrderIsTurned) {
  // a[i][j][k] = 100 i + 10 j + k for shape (2, 3, 2), written first index fastest.
  std::string body;
  for (int k = 0; k < 2; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) body += raw<std::int32_t>({100 * i + 10 * j + k});
    }
  }
  const auto array = npy(npy_with(header_of("<i4", "(2, 3, 2)", true), body));
  ASSERT_TRUE(array.has_value());
  EXPECT_EQ(array->values, (std::vector<double>{0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121}));
}

TEST(Npy, HostileHeadersAreErrors) {
  expect_error(npy(npy_with(header_of("|O", "(2,)"), "xx")), {"'|O'", "pickles", "astype"});
  expect_error(npy(npy_with(header_of("<c8", "(2,)"), "xx")), {"'<c8'"});
  expect_error(npy(npy_with("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,), }", "xx")),
               {"record"});
  expect_error(npy(npy_with(header_of("<i4", "(-3,)"), "")), {"-3"});
  expect_error(npy(npy_with(header_of("<i4", "(9999999999, 9999999999)"), "")), {"9999999999", "elements"});
  expect_error(npy(npy_with(header_of("<i4", "(1000,)"), "abcd")), {"cut short", "1 of 1000"});
  expect_error(npy(npy_with(header_of("<i4", "(1,)"), "abcdefgh")), {"follow", "[1]", "numpy.savez"});
  expect_error(npy(npy_with("{'descr': '<i4'}", "")), {"fortran_order"});
  const auto none =
      npy(npy_with(header_of("<i4", "(0, 9000000000000000000, 9000000000000000000)", true), ""));
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->values.empty());
  expect_error(npy("\x93NUMPY"), {"NUMPY"});
  expect_error(npy(npy_with(header_of("<i4", "(2,)"), "", 9)), {"version 9"});
  expect_error(npy(npy_with(header_of("<i4", "(4,)"), raw<std::int32_t>({1, 2, 3, 4})), 3),
               {"more than 3 elements"});
}

RC_GTEST_PROP(Npy, WhatWeWriteWeRead, ()) {
  const auto rows = *rc::gen::inRange<std::int64_t>(0, 6), columns = *rc::gen::inRange<std::int64_t>(1, 6);
  const auto values = *rc::gen::container<std::vector<std::int64_t>>(
      static_cast<std::size_t>(rows * columns), rc::gen::inRange<std::int64_t>(-1'000'000, 1'000'000));
  const std::string file = npy_bytes(Shape{rows, columns}, std::span<const std::int64_t>(values));
  const auto header_end = file.find('\n');
  RC_ASSERT((header_end + 1) % 64 == 0U);
  const auto array = npy(file);
  RC_ASSERT(array.has_value());
  RC_ASSERT(array->shape == (Shape{rows, columns}));
  RC_ASSERT(std::equal(values.begin(), values.end(), array->values.begin(), array->values.end(),
                       [](std::int64_t a, double b) { return static_cast<double>(a) == b; }));
}

TEST(Npz, ReadsEveryArrayAndNamesTheRest) {
  const Directory directory;
  const std::vector<std::int32_t> values = {1, 2, 3, 4, 5, 6};
  const std::string good = npy_bytes(Shape{1, 2, 3}, std::span<const std::int32_t>(values));
  ASSERT_TRUE(write_zip(directory.at("a.npz"), {{"notes.npy", npy_with(header_of("|O", "(1,)"), "x")},
                                                {"tokens_per_expert.npy", good}}));
  const auto loads = read_expert_loads({directory.at("a.npz")}, {});
  ASSERT_TRUE(loads.has_value()) << loads.error().message;
  EXPECT_EQ(loads->steps, 1);
  EXPECT_EQ(loads->layers, 2);
  EXPECT_EQ(loads->experts, 3);
  EXPECT_EQ(loads->counts, (std::vector<double>{1, 2, 3, 4, 5, 6}));

  ASSERT_TRUE(write_zip(directory.at("b.npz"), {{"x.npy", good}, {"y.npy", good}}));
  expect_error(read_expert_loads({directory.at("b.npz")}, {}),
               {"b.npz", "--array", "x [1, 2, 3]", "y [1, 2, 3]"});
  LoadsOptions options;
  options.array = "y";
  EXPECT_TRUE(read_expert_loads({directory.at("b.npz")}, options).has_value());
  options.array = "z";
  expect_error(read_expert_loads({directory.at("b.npz")}, options), {"no array z"});
}

TEST(Npz, SameContentsSameBytes) {
  const Directory directory;
  std::string written[2];
  for (std::string& bytes_written : written) {
    ASSERT_TRUE(write_zip(directory.at("x.npz"), {{"a.npy", "some bytes"}}));
    std::ifstream in(directory.at("x.npz"), std::ios::binary);
    bytes_written.assign(std::istreambuf_iterator<char>(in), {});
  }
  EXPECT_FALSE(written[0].empty());
  EXPECT_EQ(written[0], written[1]);
}

TEST(Npz, DamageIsNoticed) {
  const Directory directory;
  const std::vector<std::int32_t> values(6, 1);
  ASSERT_TRUE(write_zip(directory.at("a.npz"),
                        {{"arr_0.npy", npy_bytes(Shape{1, 2, 3}, std::span<const std::int32_t>(values))}}));
  std::ifstream in(directory.at("a.npz"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  expect_error(read_expert_loads({directory.write("cut.npz", whole.substr(0, whole.size() / 2))}, {}),
               {"cut.npz"});
  std::string flipped = whole;  // the sums alone, in the directory and before the entry
  flipped[14] = static_cast<char>(flipped[14] ^ 1);
  const std::size_t sum = whole.find("PK\1\2") + 16;
  flipped[sum] = static_cast<char>(flipped[sum] ^ 1);
  expect_error(read_expert_loads({directory.write("flipped.npz", flipped)}, {}),
               {"flipped.npz", "arr_0.npy is damaged", "CRC"});
  expect_error(write_zip("/nonexistent/x.npz", {{"a", "b"}}), {"/nonexistent/x.npz"});
  expect_error(read_expert_loads({directory.at("absent.npz")}, {}), {"absent.npz", "No such file"});
  expect_error(read_expert_loads({directory.at("")}, {}), {"directory"});
}

}  // namespace
}  // namespace trimtab::io
