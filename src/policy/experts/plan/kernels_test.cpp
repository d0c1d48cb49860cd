#include "policy/experts/plan/kernels.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"

namespace trimtab::experts {
namespace {

constexpr std::int32_t kExperts = 96, kSteps = 48, kPairs = 21, kRanks = 6;

std::vector<float> floats(std::size_t count, std::uint64_t seed) {
  base::Prng prng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(prng.uniform() * 1000);
  return values;
}

std::uint64_t digest(std::span<const float> values) { return base::checksum_of(values); }

/// Every loop once; what it gave, in one number.
std::uint64_t run_all(const Kernels& table) {
  std::uint64_t hash = 0;
  base::Prng prng(1);
  std::vector<std::int16_t> pairs(2 * kPairs * kExperts);
  for (std::int16_t& value : pairs) value = static_cast<std::int16_t>(prng.below(6000));
  std::vector<float> gram(kExperts * kExperts);
  table.gram(pairs.data(), kPairs, kExperts, gram.data());
  hash = base::mix(hash, digest(gram));

  std::vector<float> row = floats(kExperts, 2);
  const std::vector<float> other = floats(kExperts, 3), share = floats(kExperts, 4);
  table.add_scaled(row.data(), other.data(), 0.3F, kExperts);
  hash = base::mix(hash, digest(row));
  std::vector<float> out(kExperts);
  table.swap_row(out.data(), row.data(), other.data(), 1.7F, share.data(), row.data(), kExperts);
  hash = base::mix(hash, digest(out));

  float value[2];
  std::int32_t index[2];
  table.top_two(row.data(), kExperts, value, index);
  hash = base::mix(hash, digest(value));
  hash = base::mix(hash, static_cast<std::uint64_t>(index[0] * 1000 + index[1]));

  const std::vector<float> loads = floats(kRanks * kSteps, 5), moved = floats(kSteps, 6);
  std::vector<float> best(3 * kSteps);
  std::vector<std::int32_t> who(3 * kSteps);
  table.top_three(loads.data(), kRanks, kSteps, best.data(), who.data());
  hash = base::mix(hash, digest(best));
  hash = base::mix(hash, base::checksum_of(std::span<const std::int32_t>(who)));
  const std::vector<float> rest(kSteps / 16 + 1, 0.0F);
  const float peaks =
      table.peaks_after_swap(loads.data(), loads.data() + kSteps, moved.data(), moved.data(), best.data(),
                             who.data(), 0, 1, rest.data(), std::numeric_limits<float>::infinity(), kSteps);
  hash = base::mix(hash, digest({&peaks, 1}));

  std::vector<float> expected(16);
  table.forecast(loads.data(), 18, 16, ForecastTuning{}, expected.data());
  return base::mix(hash, digest(expected));
}

TEST(PlanKernels, EveryInstructionSetGivesTheSameBits) {
  const std::uint64_t base_hash = run_all(*kernels_of(Isa::kBase));
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const Kernels* table = kernels_of(isa);
    if (table == nullptr) continue;  // this processor lacks it
    EXPECT_EQ(run_all(*table), base_hash) << static_cast<int>(isa);
  }
}

TEST(PlanKernels, GramIsExact) {
  std::vector<std::int16_t> pairs(2 * kPairs * kExperts);
  base::Prng prng(7);
  for (std::int16_t& value : pairs) value = static_cast<std::int16_t>(prng.below(500));
  std::vector<float> gram(kExperts * kExperts);
  kernels().gram(pairs.data(), kPairs, kExperts, gram.data());
  for (std::size_t a = 0; a < kExperts; a += 5) {
    for (std::size_t b = 0; b < kExperts; ++b) {
      std::int64_t sum = 0;
      for (std::size_t pair = 0; pair < kPairs; ++pair) {
        for (std::size_t half = 0; half < 2; ++half)
          sum += pairs[(pair * kExperts + a) * 2 + half] * pairs[(pair * kExperts + b) * 2 + half];
      }
      ASSERT_EQ(gram[a * kExperts + b], static_cast<float>(sum)) << a << " " << b;
    }
  }
}

TEST(PlanKernels, TopTwoTakesTheLowerIndexOfEquals) {
  std::vector<float> row(32, 1.0F);
  row[20] = row[29] = 7;
  float value[2];
  std::int32_t index[2];
  kernels().top_two(row.data(), 32, value, index);
  EXPECT_EQ(index[0], 20);
  EXPECT_EQ(index[1], 29);
  EXPECT_EQ(value[1], 7);
}

}  // namespace
}  // namespace trimtab::experts
