#include "io/expert_loads.h"

#include <gtest/gtest.h>

#include "io/expert_testing.h"

namespace trimtab::io {
namespace {

base::Result<ExpertLoads> loads_of(const std::string& name, const std::string& contents,
                                   LoadsOptions options = {}) {
  const Directory directory;
  return read_expert_loads({directory.write(name, contents)}, options);
}

TEST(Csv, LongForm) {
  const auto loads = loads_of("a.csv",
                              "step,layer,expert,count\n"
                              "100,3,0,5\n100,3,2,7\n101,3,0,1\r\n# a comment\n\n100,4,1,2\n");
  ASSERT_TRUE(loads.has_value()) << loads.error().message;
  EXPECT_EQ(loads->steps, 2);
  EXPECT_EQ(loads->layers, 2);
  EXPECT_EQ(loads->experts, 3);
  EXPECT_EQ(loads->counts, (std::vector<double>{5, 0, 7, 0, 2, 0, 1, 0, 0, 0, 0, 0}));
}

TEST(Csv, OtherForms) {
  LoadsOptions steps;
  steps.matrix = Matrix::kSteps;
  const auto matrix = loads_of("a.csv", "1,2,3\n4,5,6\n", steps);
  ASSERT_TRUE(matrix.has_value());
  EXPECT_EQ(matrix->steps, 2);
  EXPECT_EQ(matrix->layers, 1);
  EXPECT_EQ(matrix->counts, (std::vector<double>{1, 2, 3, 4, 5, 6}));
  const auto as_layers = loads_of("a.csv", "1;2;3\n4;5;6\n");
  EXPECT_EQ(as_layers->steps, 1);
  EXPECT_EQ(as_layers->layers, 2);
  ASSERT_EQ(as_layers->notes.size(), 1U);
  EXPECT_NE(as_layers->notes[0].find("--matrix steps"), std::string::npos);
  const auto wide = loads_of("a.csv", "prompt,layer,e1,e0\nhello,0,10,11\nworld,1,12,13\n");
  ASSERT_TRUE(wide.has_value()) << wide.error().message;
  EXPECT_EQ(wide->layers, 2);
  EXPECT_EQ(wide->counts, (std::vector<double>{11, 10, 13, 12}));
  EXPECT_EQ(loads_of("a.csv", "Expert\tCount\n1\t5\n0\t4")->counts, (std::vector<double>{4, 5}));
}

TEST(Csv, ErrorsNameTheLine) {
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,0,5\n0,0,1,six\n"),
               {"line 3", "field 4", "six"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,0,5\n0,0\n0,0,1,2\n"), {"line 3", "2 fields"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,0,5\n0,0,1"),
               {"line 3", "the last", "cut short", "3 of 4", "truncated"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,0,5\n0,0,0,6\n"),
               {"line 3", "repeats", "expert 0"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,-1,5\n"), {"line 2", "expert", "-1"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,70000,5\n"), {"line 2", "70000"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,1.5,5\n"), {"line 2", "1.5"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n"), {"no row"});
  expect_error(loads_of("a.csv", "when,who\n1,2\n"), {"line 1", "when, who", "e0"});
  expect_error(loads_of("a.csv", "e0,e2\n1,2\n"), {"e2"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,0,-5\n"), {"layer 0", "expert 0", "-5"});
  expect_error(loads_of("a.csv", "step,layer,expert,count\n0,0,0,nan\n"), {"step 0", "nan"});
  expect_error(loads_of("a.csv", "1,2\n3,inf\n"), {"expert 1", "inf"});
  const auto open = loads_of("a.csv", "step,layer,expert,count\n0,0,0,5");
  ASSERT_TRUE(open.has_value());
  ASSERT_EQ(open->notes.size(), 1U);
  EXPECT_NE(open->notes[0].find("no line end"), std::string::npos);
}

TEST(Json, CountsAndErrors) {
  const auto loads =
      loads_of("a.json", R"({"rank": 0, "logical_count": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]})");
  ASSERT_TRUE(loads.has_value()) << loads.error().message;
  EXPECT_EQ(loads->steps, 2);
  EXPECT_EQ(loads->counts, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(loads_of("a.json", " [1, 2.5, 3]")->experts, 3);
  expect_error(loads_of("a.json", "[[1, 2], [3]]"), {"same length"});
  expect_error(loads_of("a.json", "[[1, 2], [3, \"x\"]]"), {"string"});
  expect_error(loads_of("a.json", "{\"logical_count\": [[1, 2]"), {"a.json", "no JSON", "column"});
  expect_error(loads_of("a.json", "{\"name\": 3}"), {"name: a number"});
  expect_error(loads_of("a.json", std::string(100'000, '[')), {"no JSON"});
  expect_error(loads_of("a.json", "[[[[[[[[[[1]]]]]]]]]]"), {"deep"});
}

TEST(Loads, PhysicalCountsAreFolded) {
  const auto loads = loads_of("a.json",
                              R"({"expert_load_window": [[[1, 2, 4, 8]], [[10, 20, 40, 80]]],
                                  "physical_to_logical_map": [[1, 0, 1, -1]]})");
  ASSERT_TRUE(loads.has_value()) << loads.error().message;
  EXPECT_EQ(loads->experts, 2);
  EXPECT_EQ(loads->counts, (std::vector<double>{2, 5, 20, 50}))
      << "tokens of the empty slot belong to nobody";
  expect_error(loads_of("a.json", R"({"expert_load_window": [[[1, 2]]]})"),
               {"physical_to_logical_map", "--physical-map"});
  expect_error(
      loads_of("a.json", R"({"expert_load_window": [[[1, 2]]], "physical_to_logical_map": [[0, 1, 0]]})"),
      {"[1, 3]", "agree"});
  expect_error(
      loads_of("a.json", R"({"expert_load_window": [[[1, 2]]], "physical_to_logical_map": [[0, 0.5]]})"),
      {"0.5"});
  const Directory directory;
  LoadsOptions options;
  options.physical_map = directory.write("map.json", R"({"physical_to_logical_map": [[1, 0, 1]]})");
  const auto given = read_expert_loads({directory.write("counts.json", "[[[1, 2, 4]]]")}, options);
  ASSERT_TRUE(given.has_value()) << given.error().message;
  EXPECT_EQ(given->counts, (std::vector<double>{2, 5}));
}

TEST(Loads, AFewSlotsDoNotUnfoldToAnExhaustedMachine) {
  LoadsOptions options;
  options.elements_max = 1000;
  expect_error(
      loads_of("a.json", R"({"expert_load_window": [[[1, 2]]], "physical_to_logical_map": [[0, 65535]]})",
               options),
      {"a.json", "expert 65535", "1000 counts", "fewer steps"});
}

TEST(Loads, FilesFollowOneAnother) {
  const Directory directory;
  const std::string first = directory.write("a.json", "[[[1, 2]], [[3, 4]]]");
  const std::string second = directory.write("b.json", "[[[5, 6]]]");
  LoadsOptions options;
  EXPECT_EQ(read_expert_loads({first, second}, options)->counts, (std::vector<double>{1, 2, 3, 4, 5, 6}));
  options.window = 2;
  EXPECT_EQ(read_expert_loads({first, second}, options)->counts, (std::vector<double>{3, 4, 5, 6}));
  options.window = 9;
  EXPECT_NE(read_expert_loads({first, second}, options)->notes.at(0).find("only 3 steps"), std::string::npos);
  options.window = -1;
  expect_error(read_expert_loads({first}, options), {"--window -1"});
  expect_error(read_expert_loads({first, directory.write("c.json", "[[[5, 6, 7]]]")}, {}),
               {"c.json", "3", "2"});
  expect_error(read_expert_loads({directory.write("e.json", "[]")}, {}), {"no step"});
  expect_error(read_expert_loads({directory.write("empty", "")}, {}), {"empty"});
  expect_error(read_expert_loads({directory.write("h5", std::string("\x89HDF\r\n\x1a\n\0", 9))}, {}),
               {"not known"});
}

TEST(Loads, CountsAbove32BitsStay) {
  const auto loads = loads_of("a.json", "[[[3000000000, 1]]]");
  ASSERT_TRUE(loads.has_value());
  EXPECT_EQ(loads->counts[0], 3e9);
}

}  // namespace
}  // namespace trimtab::io
