#include "experts_eval/seed_routing.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <span>

namespace trimtab::experts_eval {
namespace {

/// numpy's default_rng(0).normal(0, 1, 256).
constexpr std::array<double, SeedRouting::kExperts> kBias{
    0x1.017ed89db8441p-3,  -0x1.0e8cfe9bd45ccp-3, 0x1.47e57a468b06dp-1,  0x1.adabbec84d4f0p-4,
    -0x1.1243418e643edp-1, 0x1.7245f95ced1e6p-2,  0x1.4dd2f26bd103cp+0,  0x1.e4e7cbc69bca3p-1,
    -0x1.684ffc1daaf28p-1, -0x1.43f2a959cc8bbp+0, -0x1.3f1dd4920f4fbp-1, 0x1.528adc38b0ce3p-5,
    -0x1.299a9bc1a2383p+1, -0x1.c015d809d257ep-3, -0x1.3ef405142e27ep+0, -0x1.76ebbf28c26f7p-1,
    -0x1.16a91d07da4d4p-1, -0x1.43e4302d4d028p-2, 0x1.a58279af0c1f8p-2,  0x1.0ae227fb66293p+0,
    -0x1.073d2e6df9e08p-3, 0x1.5dd08ccd30870p+0,  -0x1.549465703261fp-1, 0x1.67f2417d0e872p-2,
    0x1.ce93a4c6361dfp-1,  0x1.81130a04e056dp-4,  -0x1.7cabef01267aep-1, -0x1.d7ec6375d8ae8p-1,
    -0x1.d4b6142f1a705p-2, 0x1.c2f5a93057217p-3,  -0x1.02765657beec8p+0, -0x1.ac643e69916c2p-3,
    -0x1.4617c3124dbcbp-3, 0x1.14e9b664d2b5bp-1,  0x1.b79f33b79f514p-3,  0x1.6be6d2ccde9a7p-2,
    -0x1.4ec29f9d48276p-1, -0x1.0972df6e9bfe4p-3, 0x1.91653b998f2cap-1,  0x1.7e5180e78d0dfp+0,
    -0x1.42521e63e874fp+0, 0x1.8390822d24221p+0,  0x1.588b4ab1a2987p+0,  0x1.90080c440025bp-1,
    0x1.0ecd74ee079a4p-2,  -0x1.4174fb779be26p-2, 0x1.7540d7f0aecc3p+0,  0x1.f5d37d30dd579p+0,
    0x1.cd37f15d68815p+0,  0x1.50aaa3ec616edp+0,  0x1.6df521600b894p-2,  -0x1.35545eb0cca3fp+0,
    -0x1.23e7f4153196ap-8, 0x1.501d7b9197da1p-1,  -0x1.49d20e903b248p+0, 0x1.949ae099a3b4cp-2,
    0x1.b82e303bff2efp-2,  0x1.645fb640141bfp-1,  -0x1.2f225ae5d4012p+0, -0x1.52caadf52c691p-1,
    -0x1.bee8e1a5350e6p-2, -0x1.2b782348aecfep+0, 0x1.bd473693fca3ap+0,  -0x1.fbd005a1940cap-2,
    0x1.50dd6a1fa29e1p-2,  -0x1.08c73dc9d0df3p-2, 0x1.955e7a848edecp+0,  0x1.52032d7a6e477p+0,
    0x1.4446cb83bcd7dp-1,  -0x1.1a0c9c9ce5263p+1, 0x1.aa38aadc801c0p-5,  0x1.5e0c1dcc395c5p-1,
    0x1.0103a036aec83p+0,  -0x1.3c5e4fe9f96c7p-1, 0x1.d26f56326f7e6p+0,  -0x1.5207c398d528bp+0,
    -0x1.52b3cd062afa4p-1, 0x1.debedf3e265b1p-1,  0x1.91dafb431fba5p-5,  0x1.004e667241314p+1,
    0x1.821659b4132f6p-3,  -0x1.4432040acacc1p-1, -0x1.82a001ec8d596p-2, -0x1.17555a1a54f1cp+0,
    -0x1.47160c2160d99p+0, 0x1.42c54b7fbe8c0p-1,  0x1.298e90bbbb87fp-1,  0x1.4b6834f03f7acp+0,
    -0x1.825bb0b5aace8p-1, 0x1.b0695893acea6p+0,  -0x1.2648f6993e14ap-2, 0x1.930c6bc4306c1p+0,
    -0x1.bb2c368f489bdp-2, -0x1.7891441eba9cfp-1, 0x1.ff8f790ee8d27p-3,  0x1.080d4f32df690p+0,
    0x1.49bf6392ae81cp-3,  -0x1.2bca6f1cf33bfp-1, -0x1.575a2cd8b5b32p+0, -0x1.66ca075fc0d4ap+0,
    0x1.015fa580f1fc0p-1,  0x1.fabbaaacc6655p-1,  -0x1.5079aef1e1d35p-3, -0x1.1309934a1013ep+0,
    0x1.beff618b144fbp-1,  -0x1.47c7e5c68ba77p+0, -0x1.6d1742e83380fp-1, 0x1.3df60d565fa9ap-1,
    -0x1.2004a03ff1663p+1, 0x1.8ba478c6dd25ep-2,  -0x1.29ccd3e4cb36cp-1, 0x1.bf9c116c8b332p-4,
    -0x1.3612cdb602f4dp-4, 0x1.9dee26e61df77p-3,  0x1.636a810bea483p-1,  -0x1.84490a3cc4c77p-1,
    0x1.6bc57a52089b8p+0,  0x1.73c290aab8004p-1,  0x1.affdba3e51b05p-1,  0x1.2a34869f2904bp+0,
    0x1.933ec36de20d2p-1,  0x1.b02b14b0abf8ep-1,  0x1.35a1a55ed5ffcp-4,  -0x1.6d410d14c9f3ep+0,
    -0x1.1492868126f5ap-3, -0x1.89fdd2aab44e2p-1, -0x1.6c38cdf66d499p+0, 0x1.08a7d9321ff4ep-2,
    -0x1.2318e9ff720fcp-1, -0x1.07a1437e88eefp+0, -0x1.0b021e68999cfp+0, 0x1.12dbed4c26843p-2,
    0x1.6f47b30eb7813p-2,  0x1.528c929effdc7p+0,  -0x1.c7f4b31f71e41p-7, 0x1.0ab602ad7dd89p+0,
    0x1.66fad3e351afdp+0,  0x1.267141503ef77p+0,  -0x1.2ec2474547c38p+1, 0x1.3a8b04271b392p+0,
    0x1.5bc558f1fb0dfp-2,  0x1.b1f11e15f27c7p-2,  0x1.7c230a4a3919bp-2,  0x1.87f17e36b0e50p-2,
    0x1.4714857771fd1p-2,  -0x1.6f86f8691712cp-2, -0x1.e6d1922771b07p+0, -0x1.be1d5ea6a4564p-4,
    -0x1.9b82bda84cc3ep-1, 0x1.148596e32f9bfp+0,  -0x1.27b2682db8a99p-2, 0x1.55ea414806651p-4,
    -0x1.b2ff8d43aa2f5p-1, -0x1.05704ee07355dp-1, -0x1.79ea556221493p-7, -0x1.7c418c4eb3afcp+0,
    0x1.33e6cc71284c7p-2,  -0x1.b278d1b92347ep-4, -0x1.2f8b5548b78bcp+0, -0x1.32f94b6689b3cp+1,
    0x1.06aec4f0515e7p-1,  -0x1.30b9decc4af37p-2, -0x1.0f5d4342c0f1cp-1, -0x1.e3a509e023939p-3,
    0x1.d10491380e2afp+0,  -0x1.97f833ad72e56p-5, 0x1.62cae15bd4a15p-4,  -0x1.7cb0cebe06531p+0,
    0x1.a5b803576c310p+0,  0x1.d5c0fc26bb82fp-1,  0x1.1122a4b8bfd5ap+0,  0x1.8688f6aee29c2p-5,
    0x1.d553c6c77264cp-1,  0x1.7bd97cb5240abp-2,  0x1.39f3eb375670dp-1,  -0x1.37b0f1185c5adp-3,
    -0x1.7950b876cf0b0p+0, 0x1.0762ffa0297e2p+0,  -0x1.ef5983c65198bp+0, -0x1.eb63eae150a03p-3,
    -0x1.a2dcafb7c8df9p-3, -0x1.0af8e1d7d494ep+0, 0x1.39eb4695f91e5p-1,  -0x1.9a46755fc5b76p-3,
    -0x1.bf5a690c64f88p-2, 0x1.0a28b2034a3d5p-1,  -0x1.e8045604a1393p-2, 0x1.6394310ebabc7p+0,
    0x1.67e3d6e8f3680p-2,  -0x1.e5b78be778becp-2, -0x1.f1bb59769dbb3p+0, -0x1.4ec8e9dbee0c7p+0,
    0x1.163a8ad4ddbb1p+0,  -0x1.9e8c698374357p-5, -0x1.21eb898715f7fp-2, 0x1.a4ac234645870p+0,
    -0x1.485bb36b89591p+0, -0x1.2bdb56d1ee915p-1, -0x1.e3ee0620ae655p-2, 0x1.2c34667134784p-1,
    -0x1.53bae2b0ebe84p-1, -0x1.3a11e77d28ec9p-1, -0x1.9aeb1224d0d0ep+0, 0x1.756d48fb3a421p-1,
    0x1.9cbe4c49ae4dfp-1,  -0x1.e7cf4e5aa6c08p-2, 0x1.4e852c61d7a6dp-3,  -0x1.4aeadb368d757p+0,
    -0x1.e322fcd5bd323p-2, 0x1.60c164c56f6dep+0,  0x1.15f9febf0b172p-3,  0x1.27b9fda0d4975p+1,
    -0x1.930aed566d56dp-1, 0x1.291b0a006b2e2p-1,  -0x1.90655c05c3c01p-3, 0x1.21b2e0773d561p-1,
    -0x1.d89a89e4e0a66p-8, -0x1.1f555bd591947p-1, -0x1.bc3843b87233fp-1, 0x1.8873e4514655fp+1,
    -0x1.3cce2c605ce01p-4, -0x1.0221efffd71d1p+1, -0x1.4c1560fe3898ep-1, 0x1.5b2805eac5cd4p-1,
    -0x1.00011af881613p-1, 0x1.5c4633cba43e4p+0,  0x1.009d2c576e82dp+0,  -0x1.37fd5196423f0p-3,
    -0x1.e38c937b7ddd1p-2, -0x1.013aa3882bfc9p+0, -0x1.666203bf0f52fp-1, -0x1.791fe790048b0p+0,
    0x1.345350bb8eeb6p+0,  0x1.97382ab26d8a7p+0,  -0x1.419243b8bdbe0p+0, -0x1.2e82c686d035fp+0,
    -0x1.c4bd316cc6cafp+0, -0x1.ed7e4d3e363bep-1, -0x1.8d9c71bdefbe1p+1, -0x1.246c64c9a4a20p+0,
    0x1.4c02a5cbd26f9p+0,  -0x1.61f7fac4b3af5p-2, 0x1.b58c1098bec1cp-1,  -0x1.f4b44e67d44b7p-2,
    0x1.c2bb178bb8e0fp+0,  0x1.97ff990e8e8a2p-3,  -0x1.872b9bdf035d9p-2, 0x1.46b5d4993f29fp+1,
    -0x1.4c4259acdf9d4p-2, -0x1.38a217ec2f718p+0, 0x1.9d82fdb93b539p-3,  -0x1.3e22fa91779d7p-5,
    0x1.10faa55ac558ep+0,  -0x1.d7e066d93457dp-1, 0x1.9c03db8e7bdc5p-1,  0x1.b49b7291a9445p-1,
};

using Word = unsigned __int128;
constexpr Word join(std::uint64_t high, std::uint64_t low) { return static_cast<Word>(high) << 64 | low; }

/// PCG64 (XSL-RR 128/64 by O'Neill), as numpy's default generator.
class Pcg64 {
 public:
  double uniform() {
    state_ = state_ * kMultiplier + kIncrement;
    const auto high = static_cast<std::uint64_t>(state_ >> 64), low = static_cast<std::uint64_t>(state_);
    const std::uint64_t word = std::rotr(high ^ low, static_cast<int>(high >> 58));
    return static_cast<double>(word >> 11) * 0x1.0p-53;
  }

 private:
  static constexpr Word kMultiplier = join(0x2360ed051fc65da4ULL, 0x4385df649fccf645ULL);
  static constexpr Word kIncrement = join(0x418ddadb3af71a82ULL, 0x588133bc447873a9ULL);
  Word state_ = join(0x36d0f9d0b32f1c47ULL, 0x3299c71bf376c5d4ULL);  // of seed 0 after the biases
};

using Scores = std::array<double, SeedRouting::kExperts>;

std::array<std::int32_t, SeedRouting::kTopK> choose(const Scores& scores) {
  constexpr std::int32_t kGroupSize = SeedRouting::kExperts / SeedRouting::kGroups;
  std::array<double, SeedRouting::kGroups> best_two{};
  for (std::size_t group = 0; group < best_two.size(); ++group) {
    std::array<double, kGroupSize> members{};
    std::copy_n(scores.begin() + static_cast<std::ptrdiff_t>(group) * kGroupSize, kGroupSize,
                members.begin());
    std::ranges::partial_sort(members, members.begin() + 2, std::greater());
    best_two[group] = members[0] + members[1];
  }
  std::array<std::int32_t, SeedRouting::kGroups> groups{};
  std::iota(groups.begin(), groups.end(), 0);
  std::ranges::sort(groups, std::greater(),
                    [&](std::int32_t g) { return best_two[static_cast<std::size_t>(g)]; });
  std::vector<std::int32_t> candidates;
  for (const std::int32_t group : std::span(groups).first(SeedRouting::kGroupsKept)) {
    for (std::int32_t i = 0; i < kGroupSize; ++i) candidates.push_back(group * kGroupSize + i);
  }
  std::array<std::int32_t, SeedRouting::kTopK> out{};
  std::ranges::partial_sort_copy(
      candidates, out, std::greater(), [&](std::int32_t e) { return scores[static_cast<std::size_t>(e)]; },
      [&](std::int32_t e) { return scores[static_cast<std::size_t>(e)]; });
  return out;
}

}  // namespace

SeedRouting seed_routing() {
  SeedRouting out;
  out.totals.resize(SeedRouting::kExperts);
  out.tokens.reserve(SeedRouting::kTokens);
  Pcg64 prng;
  for (std::int32_t token = 0; token < SeedRouting::kTokens; ++token) {
    Scores scores{};
    for (std::size_t expert = 0; expert < scores.size(); ++expert) {
      scores[expert] = prng.uniform() + 0.15 * kBias[expert];
    }
    out.tokens.push_back(choose(scores));
    for (const std::int32_t expert : out.tokens.back()) ++out.totals[static_cast<std::size_t>(expert)];
  }
  return out;
}

}  // namespace trimtab::experts_eval
