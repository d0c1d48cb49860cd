#include "policy/experts/dispatch/locality.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policy/experts/dispatch/made_layers.h"
#include "policy/experts/dispatch/shares.h"

namespace trimtab::experts {
namespace {

struct Layer {
  Shape shape;
  SlotMap map;
  std::vector<double> loads;
};

Layer make_layer(std::uint64_t seed, std::int32_t nodes, std::int32_t per_node, std::int32_t width,
                 std::int32_t experts) {
  base::Prng prng(seed);
  Layer layer{.shape = {.experts = experts,
                        .slots = nodes * per_node * width,
                        .ranks = nodes * per_node,
                        .nodes = nodes},
              .map = {},
              .loads = {}};
  layer.map = made::shuffled_map(layer.shape, prng, 4 * layer.shape.slots);
  layer.loads = made::popularity(prng, experts, 1.0, 5000);
  return layer;
}

Layer draw_layer() {
  const auto nodes = *rc::gen::inRange(1, 5), per_node = *rc::gen::inRange(1, 5);
  const auto width = *rc::gen::inRange(1, 6);
  const auto experts = *rc::gen::inRange(width, nodes * per_node * width + 1);
  return make_layer(*rc::gen::arbitrary<std::uint64_t>(), nodes, per_node, width, experts);
}

// Rank loads that the tables give, every source sending an equal part.
double table_peak(const Layer& layer, const LocalShares& local) {
  std::vector<double> carried(static_cast<std::size_t>(layer.shape.ranks));
  for (std::int32_t source = 0; source < local.sources(); ++source) {
    for (std::int32_t e = 0; e < layer.shape.experts; ++e) {
      const auto slots = local.table(source).slots_of(e);
      const auto parts = local.table(source).parts_of(e);
      for (std::size_t k = 0; k < slots.size(); ++k) {
        carried[static_cast<std::size_t>(layer.shape.rank_of_slot(slots[k]))] +=
            layer.loads[static_cast<std::size_t>(e)] / local.sources() * parts[k] / kShareParts;
      }
    }
  }
  return std::ranges::max(carried);
}

RC_GTEST_PROP(Locality, KeepsThePeakWithinItsSlack, ()) {
  const Layer layer = draw_layer();
  const LocalityOptions options{.near = *rc::gen::element(Near::kNode, Near::kRank),
                                .slack = *rc::gen::elementOf(std::vector<double>{0, 0.05, 0.5})};
  auto local = LocalShares::make(layer.shape, layer.map, options);
  auto solver = ShareSolver::make(layer.shape, layer.map);
  RC_ASSERT(local && solver);
  const auto result = local->solve(layer.loads);
  RC_ASSERT(result.has_value());
  const double optimum = solver->solve(std::span<const double>(layer.loads))->peak_tokens;
  RC_ASSERT(std::abs(result->optimum_tokens - optimum) <= 1e-9 * optimum);
  RC_ASSERT(result->peak_tokens <= (1 + options.slack) * optimum * (1 + 1e-9));
  // Rows are whole, and the rounding of a source is at most one part of what it sends to each copy.
  double most = 0;
  for (std::int32_t rank = 0; rank < layer.shape.ranks; ++rank) {
    double sum = 0;
    for (std::int32_t i = 0; i < layer.shape.slots_per_rank(); ++i) {
      sum += layer.loads[static_cast<std::size_t>(
          layer.map[static_cast<std::size_t>(rank * layer.shape.slots_per_rank() + i)])];
    }
    most = std::max(most, sum);
  }
  RC_ASSERT(table_peak(layer, *local) <= result->peak_tokens + most / kShareParts);
  for (std::int32_t source = 0; source < local->sources(); ++source) {
    for (std::int32_t e = 0; e < layer.shape.experts; ++e) {
      const auto row = local->table(source).parts_of(e);
      RC_ASSERT(std::accumulate(row.begin(), row.end(), 0) == kShareParts);
    }
  }
  RC_ASSERT(result->on_rank_tokens <= result->on_node_tokens + 1e-6);
  RC_ASSERT(result->on_node_tokens <= result->total_tokens * (1 + 1e-9));
}

// With slack enough, every token that has a copy on its node stays there.
RC_GTEST_PROP(Locality, WithSlackAllThatCanStaysNear, ()) {
  const Layer layer = draw_layer();
  auto local = LocalShares::make(layer.shape, layer.map, {.near = Near::kNode, .slack = 1e6});
  RC_ASSERT(local.has_value());
  const auto result = local->solve(layer.loads);
  double near = 0;
  for (std::int32_t e = 0; e < layer.shape.experts; ++e) {
    std::vector<bool> on(static_cast<std::size_t>(layer.shape.nodes));
    for (std::int32_t slot = 0; slot < layer.shape.slots; ++slot) {
      if (layer.map[static_cast<std::size_t>(slot)] == e) {
        on[static_cast<std::size_t>(layer.shape.node_of_rank(layer.shape.rank_of_slot(slot)))] = true;
      }
    }
    near += layer.loads[static_cast<std::size_t>(e)] * static_cast<double>(std::ranges::count(on, true)) /
            layer.shape.nodes;
  }
  RC_ASSERT(std::abs(result->on_node_tokens - near) <= 1e-6 * result->total_tokens);
}

TEST(Locality, KeepsMoreNearThanSharesThatDoNotLook) {
  double blind = 0, kept = 0, loose = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Layer layer = make_layer(seed, 4, 4, 6, 48);
    auto exact = *LocalShares::make(layer.shape, layer.map, {.near = Near::kNode, .slack = 0});
    auto slack = *LocalShares::make(layer.shape, layer.map, {.near = Near::kNode, .slack = 0.1});
    const auto tight = *exact.solve(layer.loads);
    blind += tight.on_node_blind, kept += tight.on_node_tokens;
    loose += slack.solve(layer.loads)->on_node_tokens;
  }
  EXPECT_GT(kept, 1.15 * blind);
  EXPECT_GE(loose, kept);
}

TEST(Locality, ByHand) {
  // Two nodes of one rank; expert 0 on both, 1 and 2 on one each.
  const Shape shape{.experts = 3, .slots = 4, .ranks = 2, .nodes = 2};
  const SlotMap map = {0, 1, 0, 2};
  auto local = *LocalShares::make(shape, map, {});
  auto result = *local.solve(std::vector<double>{40, 10, 10});
  EXPECT_NEAR(result.on_node_tokens, 40 + 10, 1e-9);  // all of 0, half of 1 and of 2
  EXPECT_NEAR(result.on_node_blind, 20 + 10, 1e-9);
  EXPECT_EQ(local.table(0).parts_of(0)[0], 64);
  EXPECT_EQ(local.table(1).parts_of(0)[0], 0);
  // Node 1 sends all of expert 0: three quarters stay, since rank 0 must take the rest.
  result = *local.solve_sources(std::vector<double>{0, 5, 5, 40, 5, 5});
  EXPECT_NEAR(result.peak_tokens, 30, 1e-9);
  EXPECT_NEAR(result.on_node_tokens, 20 + 10, 1e-9);
  EXPECT_EQ(local.table(1).parts_of(0)[0], 32);
}

TEST(Locality, CountsNodes) {
  const Shape shape{.experts = 4, .slots = 4, .ranks = 4, .nodes = 2};
  const std::vector<std::int32_t> slots = {0, 1, 0, 2, 3, 2};
  const std::vector<std::int32_t> sources = {0, 0, 1};
  const NodeCount count = count_nodes(shape, slots, 2, sources);
  EXPECT_NEAR(count.nodes_per_token, (1 + 2 + 1) / 3.0, 1e-12);
  EXPECT_NEAR(count.remote_nodes_per_token, (0 + 1 + 1) / 3.0, 1e-12);
}

TEST(Locality, Refusals) {
  const Shape shape{.experts = 2, .slots = 4, .ranks = 2, .nodes = 2};
  const SlotMap map = {0, 1, 1, 0};
  EXPECT_NE(LocalShares::make(shape, map, {.slack = -0.5}).error().message.find("-0.5"), std::string::npos);
  auto local = *LocalShares::make(shape, map, {});
  EXPECT_NE(local.solve(std::vector<double>{1}).error().message.find("1 experts"), std::string::npos);
  EXPECT_NE(local.solve_sources(std::vector<double>{1, 2, 3, NAN}).error().message.find("expert 1"),
            std::string::npos);
  EXPECT_EQ(local.solve(std::vector<double>{0, 0})->peak_tokens, 0);
}

}  // namespace
}  // namespace trimtab::experts
