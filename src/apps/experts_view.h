#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "policy/experts/load_window.h"
#include "policy/experts/types.h"
#include "report/style.h"

namespace trimtab::apps {

/// One layer before and after. Balance: sum over steps of the busiest rank / of the mean rank.
struct LayerScore {
  std::int32_t layer = 0;
  double before = 0, after = 0;
  double tokens = 0;          // over the window: a layer's weight in the mean
  std::int64_t received = 0;  // copies that ranks must receive
};

/// Balance over all layers: the layers' peaks and means summed.
double total_before(std::span<const LayerScore> layers);
double total_after(std::span<const LayerScore> layers);
std::int64_t total_received(std::span<const LayerScore> layers);
/// The layer that was worst before.
std::int32_t worst_layer(std::span<const LayerScore> layers);

/// What a table of layers shows: one balance, two, or two and the copies that move between them.
enum class LayerColumns { kOne, kTwo, kMoves };

/// A row per layer, the `rows_max` worst unless all fit, and the total.
std::string layers_table(std::span<const LayerScore> layers, const experts::Shape& shape,
                         std::size_t rows_max, LayerColumns shown, const report::Style& style);

/// Tokens of each rank over the window, relative to the mean rank, [ranks].
std::vector<double> rank_loads(const experts::Shape& shape, std::span<const std::int32_t> map,
                               const experts::LoadWindow& window);

/// Bars of `after` (and what was `before`, unless empty).
std::string rank_chart(std::span<const double> before, std::span<const double> after,
                       const report::Style& style);

/// "planning: 23 of 58 layers" on standard error, if that is a terminal and the work is long. Any thread
/// ticks.
class Progress {
 public:
  Progress(std::string what, std::int32_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void tick();

 private:
  std::string what_;
  std::int32_t total_;
  bool is_tty_;
  std::mutex mutex_;
  std::int32_t done_ = 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace trimtab::apps
