#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trimtab::base {

using Labels = std::vector<std::pair<std::string, std::string>>;

/// Where rooms report numbers without knowing who collects them (`obs` does, for Prometheus). Names follow
/// Prometheus: `trimtab_prefill_queue_depth`, counters end in `_total`, units are spelled out (`_seconds`,
/// `_bytes`, `_tokens`).
class Metrics {
 public:
  virtual ~Metrics() = default;
  virtual void add(std::string_view counter, double amount, const Labels& labels = {}) = 0;
  virtual void set(std::string_view gauge, double value, const Labels& labels = {}) = 0;
  virtual void observe(std::string_view histogram, double value, const Labels& labels = {}) = 0;
};

/// Drops everything; for tests and tools.
class NoMetrics final : public Metrics {
 public:
  void add(std::string_view, double, const Labels&) override {}
  void set(std::string_view, double, const Labels&) override {}
  void observe(std::string_view, double, const Labels&) override {}
};

}  // namespace trimtab::base
