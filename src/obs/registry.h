#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"

namespace trimtab::obs {

/// Collects metrics and writes them in the Prometheus text format (version 0.0.4). Safe to use from several
/// threads. The number of series is bounded: beyond `series_max` new ones are dropped and counted in
/// `trimtab_metrics_dropped_series_total`.
class Registry final : public base::Metrics {
 public:
  explicit Registry(std::size_t series_max = 10'000) : series_max_(series_max) {}

  void add(std::string_view counter, double amount, const base::Labels& labels = {}) override;
  void set(std::string_view gauge, double value, const base::Labels& labels = {}) override;
  /// Histograms use the buckets declared by `describe`, or seconds-shaped ones.
  void observe(std::string_view histogram, double value, const base::Labels& labels = {}) override;

  /// Help text and, for histograms, upper bounds of the buckets (increasing; +Inf is implied).
  void describe(std::string_view name, std::string_view help, std::vector<double> buckets = {});

  std::string prometheus_text() const;
  /// The present value of a counter or gauge; 0 when it was never reported.
  double value(std::string_view name, const base::Labels& labels = {}) const;

 private:
  enum class Kind : std::uint8_t { kCounter, kGauge, kHistogram };
  struct Series {
    double value = 0;  // counters and gauges; the sum of a histogram
    std::vector<std::uint64_t> buckets;
    std::uint64_t count = 0;
  };
  struct Family {
    Kind kind = Kind::kCounter;
    std::string help;
    std::vector<double> bounds;
    std::map<std::string, Series> series;  // by rendered labels
  };

  Series* find_or_add(std::string_view name, Kind kind, const base::Labels& labels);

  mutable std::mutex mutex_;
  std::size_t series_max_;
  std::size_t series_count_ = 0;
  std::uint64_t dropped_ = 0;
  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace trimtab::obs
