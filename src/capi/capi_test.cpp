#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "capi/bridge.h"
#include "capi/trimtab_experts.h"
#include "experts_host/plan_layers.h"
#include "policy/experts/moves/move_plan.h"

namespace trimtab::capi {
namespace {

using testing::HasSubstr;

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// Loads [steps, layers, experts] in whole tokens, with a few hot experts.
template <class T>
std::vector<T> loads_of(std::int32_t steps, std::int32_t layers, std::int32_t experts, std::uint64_t seed) {
  base::Prng prng(seed);
  std::vector<T> out(at(steps) * at(layers) * at(experts));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(prng.below(i % 7 == 0 ? 900 : 100));
  return out;
}

TEST(Capi, PlansAreThoseOfTheCppFacesForEveryTypeAndThreadCount) {
  const trimtab_shape shape{24, 32, 4, 1, 1};
  constexpr std::int32_t kSteps = 12, kLayers = 5;
  const auto doubles = loads_of<double>(kSteps, kLayers, 24, 1);
  const auto floats = loads_of<float>(kSteps, kLayers, 24, 1);
  const auto longs = loads_of<std::int64_t>(kSteps, kLayers, 24, 1);
  const auto ints = loads_of<std::int32_t>(kSteps, kLayers, 24, 1);
  const auto plans = experts_host::plan_layers(shape_of(shape), doubles.data(), kSteps, kLayers, {}, {}, 1);
  ASSERT_TRUE(plans.has_value());
  const std::vector<std::int32_t> expected = experts_host::maps_of(*plans);
  const std::array<const void*, 4> arrays{ints.data(), longs.data(), floats.data(), doubles.data()};
  for (std::int32_t type = 0; type < 4; ++type) {
    for (const std::int32_t threads : {0, 1, 2, 3, 16}) {
      trimtab_plan_options options;
      trimtab_plan_options_default(&options);
      options.threads = threads;
      std::vector<std::int32_t> maps(expected.size(), -1);
      std::array<char, 200> error{};
      ASSERT_EQ(trimtab_plan_layers(&shape, arrays[at(type)], type, kSteps, kLayers, nullptr, 0, &options,
                                    maps.data(), nullptr, error.data(), error.size()),
                TRIMTAB_OK)
          << error.data();
      EXPECT_EQ(maps, expected) << "type " << type << ", " << threads << " threads";
    }
  }
}

TEST(Capi, PaperSignatureWithoutNodesIsTheGlobalPlan) {
  const auto weight = loads_of<double>(1, 2, 24, 5);
  std::vector<std::int32_t> map(2 * 32), slots(2 * 24 * 4), count(2 * 24), direct(2 * 32);
  std::array<char, 200> error{};
  ASSERT_EQ(trimtab_rebalance_experts(weight.data(), TRIMTAB_DOUBLE, 2, 24, 32, 8, 1, 4, 0, 1, map.data(),
                                      slots.data(), 4, count.data(), error.data(), error.size()),
            TRIMTAB_OK)
      << error.data();
  const trimtab_shape shape{24, 32, 4, 1, 8};
  ASSERT_EQ(trimtab_plan_layers(&shape, weight.data(), TRIMTAB_DOUBLE, 1, 2, nullptr, 0, nullptr,
                                direct.data(), nullptr, error.data(), error.size()),
            TRIMTAB_OK)
      << error.data();
  EXPECT_EQ(map, direct);
}

TEST(Capi, StructOfAnOlderHeaderKeepsDefaultsForWhatItLacks) {
  trimtab_plan_options options;
  trimtab_plan_options_default(&options);
  options.seed = 99;  // behind the end of the older struct
  options.moves_max = 7;
  options.struct_bytes = offsetof(trimtab_plan_options, seed);
  const auto read = options_of(&options, default_plan_options(), "trimtab_plan_options_default");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->moves_max, 7);
  EXPECT_EQ(read->seed, default_plan_options().seed);
  options.struct_bytes = sizeof(options) + 8;
  const auto newer = options_of(&options, default_plan_options(), "trimtab_plan_options_default");
  ASSERT_FALSE(newer.has_value());
  EXPECT_THAT(newer.error().message, HasSubstr("trimtab_plan_options_default"));
}

TEST(Capi, ErrorTextIsCutBetweenCharacters) {
  const std::string text = "r\xc3\xa9sum\xc3\xa9";  // two characters of two bytes
  for (std::size_t bytes = 1; bytes <= text.size() + 2; ++bytes) {
    std::vector<char> buffer(bytes, 'x');
    write_error(text, buffer.data(), bytes);
    const std::string cut = buffer.data();
    EXPECT_EQ(text.compare(0, cut.size(), cut), 0);
    EXPECT_TRUE(cut.empty() || static_cast<unsigned char>(cut.back()) != 0xc3U) << bytes;
  }
  write_error(text, nullptr, 5);
}

TEST(Capi, ExceptionsBecomeCodes) {
  std::array<char, 64> error{};
  EXPECT_EQ(guarded(error.data(), error.size(), []() -> base::Status { throw std::bad_alloc(); }),
            TRIMTAB_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(error.data(), "out of memory");
  EXPECT_EQ(guarded(error.data(), error.size(), []() -> base::Status { throw 1; }), TRIMTAB_INTERNAL);
}

TEST(Capi, NullHandlesAreAnswered) {
  std::array<char, 64> error{};
  EXPECT_EQ(trimtab_shares_copies_max(nullptr), -1);
  EXPECT_EQ(trimtab_shares_slot(nullptr, 0, 0, 0, 1), -1);
  EXPECT_EQ(trimtab_move_plan_batch_size(nullptr, 0), -1);
  EXPECT_EQ(trimtab_statistics_end_step(nullptr, 0), -1);
  EXPECT_EQ(trimtab_statistics_due(nullptr), 0);
  EXPECT_EQ(trimtab_statistics_overdue_steps(nullptr), -1);
  EXPECT_EQ(trimtab_drift_observe(nullptr, 1, 1, nullptr, error.data(), error.size()),
            TRIMTAB_INVALID_ARGUMENT);
  EXPECT_STREQ(error.data(), "drift is NULL");
  trimtab_shares_destroy(nullptr);
  trimtab_move_plan_destroy(nullptr);
  trimtab_statistics_destroy(nullptr);
  trimtab_drift_destroy(nullptr);
  trimtab_statistics_restart_interval(nullptr);
  trimtab_drift_dismiss(nullptr);
}

/// Whatever numbers come in, the call returns: with a legal plan or with words.
RC_GTEST_PROP(Capi, AnyShapeAndAnyLoadsGiveAPlanOrAnError, (std::uint64_t seed)) {
  base::Prng prng(seed);
  const auto draw = [&] { return static_cast<std::int32_t>(prng.below(20)) - 3; };
  const trimtab_shape shape{draw(), draw(), draw(), prng.below(2) == 0 ? 1 : draw(),
                            prng.below(2) == 0 ? 1 : draw()};
  const std::int32_t steps = draw(), layers = draw(), type = static_cast<std::int32_t>(prng.below(5));
  std::vector<double> loads(17 * 17 * 17);
  for (double& load : loads) load = prng.below(200) == 0 ? -1.0 : static_cast<double>(prng.below(50));
  std::vector<std::int32_t> maps(17 * 17);
  trimtab_plan_options options;
  trimtab_plan_options_default(&options);
  options.scope = static_cast<std::int32_t>(prng.below(3));
  std::array<char, 300> error{};
  const std::int32_t code = trimtab_plan_layers(&shape, loads.data(), type, steps, layers, nullptr, 0,
                                                &options, maps.data(), nullptr, error.data(), error.size());
  if (code != TRIMTAB_OK) {
    RC_ASSERT(code == TRIMTAB_INVALID_ARGUMENT);
    RC_ASSERT(error[0] != '\0');
    return;
  }
  const experts::Shape checked = shape_of(shape);
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    const std::span map(maps.data() + layer * shape.slots, at(shape.slots));
    RC_ASSERT(experts::check(checked, map, true).has_value());
  }
}

}  // namespace
}  // namespace trimtab::capi
