#include "io/expert_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "io/expert_testing.h"
#include "io/npy.h"
#include "io/npz.h"

namespace trimtab::io {
namespace {

/// A .npy of bytes.
std::string ids(const std::string& shape, const std::vector<int>& values) {
  const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string out = std::string(kNpyMagic) + '\1' + '\0' + static_cast<char>(header.size()) + '\0' + header;
  for (const int value : values) out += static_cast<char>(value);
  return out;
}

/// Two texts of 3 and 1 windows of 2 tokens, 2 layers, 2 choices.
std::string small(const Directory& directory) {
  const std::vector<int> prose = {0, 1, 2, 3, 0, 1, 2, 3,   // window 0: layer 0 {0, 1} twice
                                  0, 2, 1, 3, 0, 3, 1, 2,   // window 1: layer 0 {0, 2}, {0, 3}
                                  3, 2, 1, 0, 3, 2, 1, 0};  // window 2: layer 0 {3, 2} twice
  const std::vector<int> code = {1, 2, 0, 3, 1, 3, 0, 3};
  EXPECT_TRUE(write_zip(directory.at("r.npz"), {{"prose.npy", ids("(3, 2, 2, 2)", prose)},
                                                {"code.npy", ids("(1, 2, 2, 2)", code)}}));
  return directory.at("r.npz");
}

TEST(ExpertRouting, CountsTheChoicesOfEachWindow) {
  const Directory directory;
  const auto routing = read_expert_routing(small(directory), 2, 0);
  ASSERT_TRUE(routing.has_value()) << routing.error().message;
  EXPECT_EQ(routing->per_token, 2);
  EXPECT_EQ(routing->recorded_layers, 2);
  const model::ExpertPopularity& of = routing->popularity;
  EXPECT_EQ(of.experts, 4);
  EXPECT_EQ(of.domains, 4);
  EXPECT_EQ(of.window_tokens, 2);
  EXPECT_EQ(of.texts, (std::vector<std::int32_t>{0, 0, 0, 1}));
  const auto row = [&](std::int32_t window, std::int32_t layer) {
    return std::vector<double>(of.of(window, layer), of.of(window, layer) + 4);
  };
  EXPECT_EQ(row(0, 0), (std::vector<double>{0.5, 0.5, 0, 0}));
  EXPECT_EQ(row(0, 1), (std::vector<double>{0, 0, 0.5, 0.5}));
  EXPECT_EQ(row(1, 0), (std::vector<double>{0.5, 0, 0.25, 0.25}));
  EXPECT_EQ(row(3, 1), (std::vector<double>{0.5, 0, 0, 0.5}));
}

TEST(ExpertRouting, KeepsLayersThatAreEvenlySpacedAndTheModelsExperts) {
  const Directory directory;
  const auto routing = read_expert_routing(small(directory), 1, 6);
  ASSERT_TRUE(routing.has_value()) << routing.error().message;
  EXPECT_EQ(routing->popularity.layers, 1);
  EXPECT_EQ(routing->popularity.experts, 6) << "two that nobody chose";
  EXPECT_EQ(routing->popularity.of(3, 0)[1], 0.5);
  EXPECT_EQ(routing->popularity.of(3, 0)[5], 0.0);
}

TEST(ExpertRouting, ReadsCountsByStepAsWindowsOfOneText) {
  const Directory directory;
  const std::string path = directory.write("c.csv", "step,layer,expert,count\n0,0,0,3\n0,0,1,1\n1,0,1,2\n");
  const auto routing = read_expert_routing(path, 1, 2);
  ASSERT_TRUE(routing.has_value()) << routing.error().message;
  EXPECT_EQ(routing->per_token, 0);
  EXPECT_EQ(routing->popularity.texts, (std::vector<std::int32_t>{0, 0}));
  EXPECT_EQ(routing->popularity.shares, (std::vector<double>{0.75, 0.25, 0, 1}));
}

TEST(ExpertRouting, ErrorsNameTheFileAndTheFix) {
  const Directory directory;
  const std::string path = small(directory);
  expect_error(read_expert_routing(directory.at("none.npz"), 1, 0), {"none.npz"});
  expect_error(read_expert_routing(path, 3, 0), {path, "2 recorded layers", "set layers to 2"});
  expect_error(read_expert_routing(path, 1, 3), {path, "4 experts", "a model of 3", "set it to 4"});
  const std::string csv = directory.write("c.csv", "step,layer,expert,count\n0,0,0,3\n0,0,1,1\n");
  expect_error(read_expert_routing(csv, 1, 3), {"2 experts", "a model of 3"});
  ASSERT_TRUE(write_zip(directory.at("two.npz"),
                        {{"a.npy", ids("(1, 1, 1, 2)", {0, 1})}, {"b.npy", ids("(1, 1, 1, 1)", {0})}}));
  expect_error(read_expert_routing(directory.at("two.npz"), 1, 0), {"two.npz", "b", "[1, 1, 1, 1]"});
  ASSERT_TRUE(write_zip(directory.at("mixed.npz"),
                        {{"a.npy", ids("(1, 1, 1, 2)", {0, 1})}, {"b.npy", ids("(2, 2)", {0, 1, 1, 1})}}));
  expect_error(read_expert_routing(directory.at("mixed.npz"), 1, 0), {"[windows, tokens, layers, choices]"});
}

TEST(ExpertRouting, ReadsTheRecordedRouting) {
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) GTEST_SKIP() << "set TRIMTAB_DATA to the folder of recorded traces and routing";
  const auto routing = read_expert_routing(std::string(data) + "/experts/derived_moe_routing.npz", 4, 0);
  ASSERT_TRUE(routing.has_value()) << routing.error().message;
  const model::ExpertPopularity& of = routing->popularity;
  EXPECT_EQ(routing->recorded_layers, 27);
  EXPECT_EQ(of.experts, 64);
  EXPECT_EQ(of.domains, 120);
  EXPECT_EQ(of.texts.back(), 3);
  for (std::int32_t window = 0; window < of.domains; ++window) {
    const double* row = of.of(window, 3);
    EXPECT_NEAR(std::accumulate(row, row + 64, 0.0), 1.0, 1e-12);
    EXPECT_GT(*std::max_element(row, row + 64), 2.0 / 64) << "real routing is uneven";
  }
}

}  // namespace
}  // namespace trimtab::io
