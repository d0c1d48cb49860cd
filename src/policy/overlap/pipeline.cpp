#include "policy/overlap/pipeline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <vector>

namespace trimtab::policy {

namespace {

constexpr int kLayersWarm = 12, kLayersTimed = 24;

/// One micro-batch's layer as a chain; stages alternate between the streams.
struct Stage {
  double seconds = 0;
  bool travels = false;
};
using Chain = std::vector<Stage>;

/// What a stream runs in one period: whose next stage, in order. `layer` later than the period's own layer
/// for stages that the order puts before the same micro-batch's earlier ones.
struct Slot {
  int batch = 0;
  std::size_t stage = 0;
  int layer_shift = 0;
};
using Order = std::vector<Slot>;

Chain chain_of(const LayerTimes& times, double attention_first, bool five) {
  Chain chain;
  chain.push_back({five ? times.attention * attention_first : times.attention, false});
  if (five) chain.push_back({times.attention * (1 - attention_first), false});
  chain.push_back({times.dispatch, true});
  chain.push_back({times.moe, false});
  chain.push_back({times.combine, true});
  return chain;
}

/// All ways to merge one layer's stages of both micro-batches on one stream. The second micro-batch's are
/// rotated too: its layer may begin in the middle of the first's.
std::vector<Order> orders_of(const Chain& chain, bool travels) {
  std::vector<std::size_t> stages;
  for (std::size_t i = 0; i < chain.size(); ++i)
    if (chain[i].travels == travels) stages.push_back(i);
  const std::size_t n = stages.size();
  std::vector<Order> orders;
  for (std::size_t rotation = 0; rotation < n; ++rotation) {
    for (unsigned mask = 0; mask < 1U << (2 * n); ++mask) {
      if (static_cast<std::size_t>(__builtin_popcount(mask)) != n) continue;
      Order order;
      std::size_t mine = 0, other = 0;
      for (std::size_t i = 0; i < 2 * n; ++i) {
        if ((mask >> i & 1U) != 0) {
          order.push_back({0, stages[mine++], 0});
        } else {
          const std::size_t at = (rotation + other) % n;
          // After a rotation the leading stages finish the layer before.
          order.push_back({1, stages[at], rotation + other < n && rotation > 0 ? -1 : 0});
          ++other;
        }
      }
      orders.push_back(std::move(order));
    }
  }
  return orders;
}

/// Plays both streams layer by layer; the mean period once warm, or infinity when the orders block each
/// other.
double play(const std::array<Chain, 2>& chains, const Order& compute, const Order& network, double give_up,
            bool second_reads_first) {
  constexpr int kLayers = kLayersWarm + kLayersTimed;
  const std::size_t stages = chains[0].size();
  // End of each stage of each micro-batch and layer; negative: not run yet.
  std::vector<double> ends(2 * (kLayers + 1) * stages, -1);
  const auto end = [&](int batch, int layer, std::size_t stage) -> double& {
    return ends[(static_cast<std::size_t>(batch) * (kLayers + 1) + static_cast<std::size_t>(layer)) * stages +
                stage];
  };
  struct Stream {
    const Order* order;
    std::size_t at = 0;
    int layer = 0;
    double free = 0;
  };
  std::array<Stream, 2> streams{Stream{&compute}, Stream{&network}};
  double warm = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream& stream : streams) {
      while (stream.layer < kLayers) {
        const Slot& slot = (*stream.order)[stream.at];
        const int layer = stream.layer + slot.layer_shift;
        if (layer >= 0) {
          double ready = 0;
          if (slot.stage > 0) {
            ready = end(slot.batch, layer, slot.stage - 1);
          } else if (layer > 0) {
            ready = end(slot.batch, layer - 1, stages - 1);
          }
          if (second_reads_first && slot.batch == 1 && slot.stage == 0) {
            const double keys = end(0, layer, 0);
            ready = keys < 0 || ready < 0 ? -1 : std::max(ready, keys);
          }
          if (ready < 0) break;  // the other stream has to run first
          stream.free =
              std::max(stream.free, ready) + chains[static_cast<std::size_t>(slot.batch)][slot.stage].seconds;
          end(slot.batch, layer, slot.stage) = stream.free;
        }
        moved = true;
        if (++stream.at == stream.order->size()) {
          stream.at = 0;
          ++stream.layer;
          if (&stream == streams.data() && stream.layer == kLayersWarm) warm = stream.free;
          if (stream.free > give_up * (kLayers + 2)) return std::numeric_limits<double>::infinity();
        }
      }
    }
  }
  if (streams[0].layer < kLayers) return std::numeric_limits<double>::infinity();
  return (streams[0].free - warm) / kLayersTimed;
}

}  // namespace

double period_bound(const LayerTimes& first, const LayerTimes& second) {
  return std::max({first.compute() + second.compute(), first.communication() + second.communication(),
                   first.compute() + first.communication(), second.compute() + second.communication()});
}

PipelinePlan best_pipeline(const LayerTimes& first, const LayerTimes& second, PipelineForm form,
                           bool second_reads_first) {
  const bool five = form == PipelineForm::kFiveStages;
  // In turn, nothing overlapped: always possible.
  PipelinePlan best{first.compute() + first.communication() + second.compute() + second.communication(), 0};
  const double bound = period_bound(first, second) * (1 + 1e-9);
  const Chain shape = chain_of(first, 0.5, five);
  const std::vector<Order> computes = orders_of(shape, false), networks = orders_of(shape, true);
  for (int eighth = five ? 1 : 0; eighth < (five ? 8 : 1); ++eighth) {
    const double share = eighth / 8.0;
    const std::array<Chain, 2> chains{chain_of(first, share, five), chain_of(second, share, five)};
    for (const Order& compute : computes) {
      for (const Order& network : networks) {
        const double period = play(chains, compute, network, best.period_s, second_reads_first);
        if (period < best.period_s * (1 - 1e-9)) best = {period, share};
        if (best.period_s <= bound) return best;
      }
    }
  }
  return best;
}

}  // namespace trimtab::policy
