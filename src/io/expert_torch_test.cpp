#include "io/expert_torch.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <span>

#include "io/expert_file.h"
#include "io/expert_loads.h"
#include "io/expert_testing.h"

namespace trimtab::io {
namespace {

using Values = PickledValues;

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string text(const std::string& value) {
  std::string out = "X";
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value.size() >> (8 * i));
  return out + value;
}

std::string integer(std::int32_t value) {
  std::string out = "J";
  for (int i = 0; i < 4; ++i) out += static_cast<char>(static_cast<std::uint32_t>(value) >> (8 * i));
  return out;
}

std::string tuple(const std::vector<std::int32_t>& values) {
  std::string out = "(";
  for (const auto value : values) out += integer(value);
  return out + "t";
}

/// As torch.save writes a tensor over storage `key`.
std::string tensor(const std::string& type, const std::string& key, std::int32_t elements,
                   std::int32_t offset, const std::vector<std::int32_t>& shape,
                   const std::vector<std::int32_t>& stride) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + type + "\n" + text(key) +
         text("cuda:0") + integer(elements) + "tQ" + integer(offset) + tuple(shape) + tuple(stride) +
         "\x89"
         "ccollections\nOrderedDict\n)RtR";
}

std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = "}(";
  for (const auto& [key, value] : items) out += text(key) + value;
  return out + "u";
}

std::string pickle(const std::string& body) { return "\x80\x02" + body + "."; }

std::string int32s(const std::vector<std::int32_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

using Entries = std::vector<std::pair<std::string, std::string>>;

std::string torch_file(const Directory& directory, const std::string& name, const std::string& pkl,
                       Entries storages) {
  Entries entries = {{"dump/data.pkl", pkl}, {"dump/byteorder", "little"}, {"dump/version", "3\n"}};
  for (auto& [key, value] : storages) entries.emplace_back("dump/data/" + key, value);
  EXPECT_TRUE(write_zip(directory.at(name), entries).has_value());
  return directory.at(name);
}

TEST(Torch, SglangStatDump) {
  const Directory directory;
  const auto path =
      torch_file(directory, "stat.pt",
                 pickle(dict({{"rank", integer(0)},
                              {"logical_count", tensor("IntStorage", "0", 12, 0, {2, 2, 3}, {6, 3, 1})},
                              {"average_utilization_rate_over_window", "N"}})),
                 {{"0", int32s({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})}});
  const auto loads = read_expert_loads({path}, {});
  ASSERT_TRUE(loads.has_value()) << loads.error().message;
  EXPECT_EQ(loads->steps, 2);
  EXPECT_EQ(loads->layers, 2);
  EXPECT_EQ(loads->experts, 3);
  EXPECT_EQ(loads->counts, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(Torch, ViewsAndTypes) {
  const Directory directory;
  // A transposed view with an offset: element (i, j) is storage[1 + i + 3 j].
  const auto turned = torch_file(directory, "t.pt", pickle(tensor("IntStorage", "0", 7, 1, {3, 2}, {1, 3})),
                                 {{"0", int32s({9, 1, 2, 3, 4, 5, 6})}});
  EXPECT_EQ(read_array_file(turned, "")->arrays.at(0).values, (std::vector<double>{1, 4, 2, 5, 3, 6}));
  // expand() has stride 0.
  const auto expanded = torch_file(directory, "e.pt", pickle(tensor("IntStorage", "0", 2, 0, {2, 2}, {0, 1})),
                                   {{"0", int32s({5, 6})}});
  EXPECT_EQ(read_array_file(expanded, "")->arrays.at(0).values, (std::vector<double>{5, 6, 5, 6}));
  const auto halves = torch_file(directory, "b.pt", pickle(tensor("BFloat16Storage", "0", 2, 0, {2}, {1})),
                                 {{"0", std::string("\x80\x3F\x00\x40", 4)}});
  EXPECT_EQ(read_array_file(halves, "")->arrays.at(0).values, (std::vector<double>{1, 2}));
  const std::string typed = "ctorch._utils\n_rebuild_tensor_v3\n((" + text("storage") +
                            "ctorch.storage\nUntypedStorage\n" + text("0") + text("cpu") + integer(4) + "tQ" +
                            integer(0) + tuple({2}) + tuple({1}) +
                            "\x89"
                            "ccollections\nOrderedDict\n)R" +
                            "ctorch\nuint16\ntR";
  const auto untyped =
      torch_file(directory, "u.pt", pickle(typed), {{"0", std::string("\x01\x00\xFF\xFF", 4)}});
  EXPECT_EQ(read_array_file(untyped, "")->arrays.at(0).values, (std::vector<double>{1, 65535}));
}

std::string record(std::int32_t pass, std::int32_t rank, const std::string& key) {
  return dict({{"forward_pass_id", integer(pass)},
               {"rank", integer(rank)},
               {"gatherer_key", text("primary")},
               {"global_physical_count", tensor("IntStorage", key, 3, 0, {1, 3}, {3, 1})}});
}

TEST(Torch, PassesOfAllRanksAddUpAndAreFolded) {
  const Directory directory;
  const std::string map = tensor("LongStorage", "map", 3, 0, {1, 3}, {3, 1});
  std::string ids(24, '\0');
  ids[8] = 1;  // slots hold the experts 0, 1, 0
  const auto dump = [&](const std::string& name, std::int32_t rank, const std::string& records,
                        const Entries& data) {
    (void)rank;
    Entries storages = data;
    storages.emplace_back("map", ids);
    return torch_file(
        directory, name,
        pickle(dict({{"records", "](" + records + "e"}, {"last_physical_to_logical_map", map}})), storages);
  };
  const auto first = dump("r0.pt", 0, record(7, 0, "0") + record(8, 0, "1"),
                          {{"0", int32s({1, 2, 4})}, {"1", int32s({10, 20, 40})}});
  const auto second = dump("r1.pt", 1, record(8, 1, "0") + record(6, 1, "1"),
                           {{"0", int32s({100, 0, 0})}, {"1", int32s({3, 0, 0})}});
  const auto loads = read_expert_loads({first, second}, {});
  ASSERT_TRUE(loads.has_value()) << loads.error().message;
  EXPECT_EQ(loads->steps, 3) << "passes 6, 7 and 8";
  EXPECT_EQ(loads->experts, 2);
  EXPECT_EQ(loads->counts, (std::vector<double>{3, 0, 5, 2, 150, 20}));
}

TEST(Torch, NothingIsCalled) {
  const Directory directory;
  const auto evil =
      torch_file(directory, "evil.pt", pickle("cposix\nsystem\n(" + text("touch /tmp/x") + "tR"), {});
  expect_error(read_expert_loads({evil}, {}), {"evil.pt", "posix.system", "plain values"});
  expect_error(read_pickle(bytes(pickle("cbuiltins\neval\n"))), {"builtins.eval"});
  expect_error(read_pickle(bytes(std::string("\x80\x04\x8C\x02os\x8C\x06system\x93.", 16))), {"os.system"});
  expect_error(read_pickle(bytes(pickle(")\x81"))), {"opcode 0x81"});
  expect_error(read_pickle(bytes(pickle("ctorch\nFloatStorage\n)R"))), {"torch.save does not write"});
}

TEST(Torch, DamageIsAnError) {
  const Directory directory;
  expect_error(
      read_expert_loads({torch_file(directory, "a.pt", pickle(tensor("IntStorage", "0", 4, 0, {8}, {1})),
                                    {{"0", int32s({1, 2, 3, 4})}})},
                        {}),
      {"a.pt", "[8]", "beyond its storage of 4"});
  expect_error(
      read_expert_loads({torch_file(directory, "b.pt", pickle(tensor("IntStorage", "0", 8, 0, {8}, {1})),
                                    {{"0", int32s({1, 2, 3, 4})}})},
                        {}),
      {"storage 0 is cut short", "16 of 32"});
  expect_error(
      read_expert_loads(
          {torch_file(directory, "c.pt", pickle(tensor("IntStorage", "7", 4, 0, {4}, {1})), {})}, {}),
      {"data/7"});
  expect_error(read_expert_loads({torch_file(directory, "d.pt", "\x80\x02}(", {})}, {}), {"cut short"});
  expect_error(read_pickle(bytes("\x80\x02.")), {"runs empty"});
  expect_error(read_pickle(bytes("\x80\x02h\x05.")), {"memo 5"});
  expect_error(read_pickle(bytes("\x80\x02}u.")), {"mark"});
  expect_error(read_pickle(bytes("\x80\x09")), {"protocol 9"});
  expect_error(read_expert_loads({directory.write("old.pt", "\x80\x02}.")}, {}), {"torch.save", "zip"});
  const std::string huge = tensor("IntStorage", "0", 2'000'000'000, 0, {2'000'000'000}, {1});
  expect_error(read_expert_loads({torch_file(directory, "e.pt", pickle(huge), {{"0", "abcd"}})}, {}),
               {"elements"});
}

TEST(Torch, AStorageOfAnotherSumIsDamaged) {
  const Directory directory;
  const auto path = torch_file(directory, "a.pt", pickle(tensor("IntStorage", "0", 3, 0, {3}, {1})),
                               {{"0", int32s({1, 2, 3})}});
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::size_t before = bytes.find("dump/data/0") - 16, listed = bytes.rfind("PK\1\2") + 16;
  for (const std::size_t sum : {before, listed}) bytes[sum] = static_cast<char>(bytes[sum] ^ 1);
  expect_error(read_array_file(directory.write("b.pt", bytes), ""), {"data/0", "damaged", "CRC"});
}

TEST(Torch, AListInItselfIsHarmless) {
  // l = []; l.append(l); memo 0 is the list.
  const auto values = read_pickle(bytes(std::string("\x80\x02]q\0h\0a.", 9)));
  ASSERT_TRUE(values.has_value()) << values.error().message;
  EXPECT_EQ(values->items(values->root()).size(), 1U);
  EXPECT_EQ(values->items(values->root())[0], values->root());
}

RC_GTEST_PROP(Torch, AnyBytesEndInAValueOrAnError, (std::vector<std::uint8_t> tail)) {
  std::string file = pickle(dict({{"logical_count", tensor("IntStorage", "0", 4, 0, {4}, {1})}}));
  const auto at = *rc::gen::inRange<std::size_t>(0, file.size());
  file.replace(at, std::min(file.size() - at, tail.size()), std::string(tail.begin(), tail.end()));
  const auto values = read_pickle(bytes(file));
  if (!values) RC_ASSERT(!values.error().message.empty());
}

}  // namespace
}  // namespace trimtab::io
