#include "io/expert_maps.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>

#include "io/expert_file.h"
#include "io/expert_testing.h"

namespace trimtab::io {
namespace {

using Shape = std::vector<std::int64_t>;

class MapRoundTrip : public testing::TestWithParam<MapFormat> {};

TEST_P(MapRoundTrip, WhatWeWriteWeRead) {
  const Directory directory;
  const ExpertMaps maps{2, 6, 5, 3, {0, 1, 2, 3, 4, 0, 4, 3, 2, 1, 0, 4}};
  const std::string path = directory.at("map");
  ASSERT_TRUE(write_expert_maps(path, maps, GetParam()));
  const auto read = read_expert_maps(path);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->layers, 2);
  EXPECT_EQ(read->slots, 6);
  EXPECT_EQ(read->experts, 5);
  EXPECT_EQ(read->ranks, GetParam() == MapFormat::kSglang ? 0 : 3) << "SGLang's file says no ranks";
  EXPECT_EQ(read->logical, maps.logical);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

INSTANTIATE_TEST_SUITE_P(Formats, MapRoundTrip,
                         testing::Values(MapFormat::kNpz, MapFormat::kSglang, MapFormat::kAscend));

TEST(Maps, NpzHasTheTablesOfAnEngine) {
  const Directory directory;
  ASSERT_TRUE(write_expert_maps(directory.at("m.npz"), {1, 4, 3, 2, {2, 0, 1, 2}}, MapFormat::kNpz));
  const auto file = read_array_file(directory.at("m.npz"), "");
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->find("logical_to_physical")->shape, (Shape{1, 3, 2}));
  EXPECT_EQ(file->find("logical_to_physical")->values, (std::vector<double>{1, -1, 2, -1, 0, 3}));
  EXPECT_EQ(file->find("logical_count")->values, (std::vector<double>{1, 1, 2}));
  EXPECT_EQ(file->find("ep_size")->values, std::vector<double>{2});
}

TEST(Maps, JsonTextsAreThePublicOnes) {
  const ExpertMaps maps{1, 4, 3, 2, {2, 0, 1, 2}};
  EXPECT_EQ(expert_maps_json(maps, MapFormat::kSglang), "{\"physical_to_logical_map\": [\n[2,0,1,2]\n]}\n");
  EXPECT_EQ(expert_maps_json(maps, MapFormat::kAscend),
            "{\"moe_layer_count\": 1, \"layer_list\": [\n{\"layer_id\": 0, \"device_count\": 2, "
            "\"device_list\": [\n"
            "{\"device_id\": 0, \"device_expert\": [2,0]},\n{\"device_id\": 1, \"device_expert\": "
            "[1,2]}\n]}\n]}\n");
}

TEST(Maps, ErrorsNameThePlace) {
  const Directory directory;
  const auto read = [&](const std::string& text) {
    return read_expert_maps(directory.write("m.json", text));
  };
  expect_error(read(R"({"physical_to_logical_map": [[0, 1], [2, -1]]})"),
               {"m.json", "layer 1, slot 1", "-1"});
  expect_error(read(R"({"physical_to_logical_map": [[0, 1], [2]]})"), {"same length"});
  expect_error(read(R"({"logical_count": [[0, 1]]})"),
               {"no physical_to_logical_map", "logical_count [1, 2]"});
  expect_error(read(R"({"layer_list": []})"), {"layer_list"});
  expect_error(
      read(R"({"layer_list": [{"device_list": [{"device_expert": [0, 1]}, {"device_expert": [2]}]}]})"),
      {"layer_list[0]", "1", "2"});
  expect_error(read(R"({"layer_list": [{"device_list": [{"device_expert": [0, "x"]}]}]})"), {"\"x\""});
  expect_error(read(R"({"moe_layer_count": 3, "layer_list": [{"device_list": [{"device_expert": [0]}]}]})"),
               {"3"});
  expect_error(read_expert_maps(directory.at("absent")), {"absent"});
  expect_error(write_expert_maps(directory.at("x"), {1, 4, 3, 3, {2, 0, 1, 2}}, MapFormat::kAscend),
               {"--ep-size"});
  expect_error(write_expert_maps("/nonexistent/x.json", {1, 1, 1, 1, {0}}, MapFormat::kSglang),
               {"/nonexistent/x.json"});
}

TEST(Maps, DevicesAndPipesAreNotReplacedByAFile) {
  const Directory directory;
  const std::string pipe = directory.at("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const MapFormat format : {MapFormat::kNpz, MapFormat::kSglang, MapFormat::kAscend}) {
    expect_error(write_expert_maps(pipe, {1, 1, 1, 1, {0}}, format), {pipe, "pipe", "name of a file"});
  }
  struct stat status {};
  ASSERT_EQ(::stat(pipe.c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode)) << "as a rename over /dev/null would do to every program";
  expect_error(write_expert_maps(directory.at(""), {1, 1, 1, 1, {0}}, MapFormat::kSglang), {"directory"});
}

RC_GTEST_PROP(Maps, AscendRoundTrip, ()) {
  const auto ranks = *rc::gen::inRange(1, 5), each = *rc::gen::inRange(1, 5),
             layers = *rc::gen::inRange(1, 4);
  ExpertMaps maps{layers, ranks * each, 0, ranks, {}};
  maps.logical = *rc::gen::container<std::vector<std::int32_t>>(
      static_cast<std::size_t>(layers * ranks * each), rc::gen::inRange(0, 20));
  const Directory directory;
  RC_ASSERT(write_expert_maps(directory.at("m"), maps, MapFormat::kAscend).has_value());
  const auto read = read_expert_maps(directory.at("m"));
  RC_ASSERT(read.has_value());
  RC_ASSERT(read->logical == maps.logical);
  RC_ASSERT(read->ranks == ranks);
}

}  // namespace
}  // namespace trimtab::io
