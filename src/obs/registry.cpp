#include "obs/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace trimtab::obs {

namespace {

const std::vector<double> kSecondsBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                            1,     2.5,    5,     10,   25,    50,   100, 250};

void append_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
}

std::string render(const base::Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    if (!out.empty()) out += ',';
    out += name + "=\"";
    append_escaped(out, value);
    out += '"';
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return fmt::format("{}", static_cast<std::int64_t>(value));
  return fmt::format("{}", value);
}

std::string with_labels(const std::string& labels) {
  return labels.empty() ? std::string{} : "{" + labels + "}";
}

}  // namespace

Registry::Series* Registry::find_or_add(std::string_view name, Kind kind, const base::Labels& labels) {
  auto family = families_.find(name);
  if (family == families_.end()) family = families_.emplace(std::string{name}, Family{}).first;
  if (family->second.series.empty()) family->second.kind = kind;
  std::string key = render(labels);
  auto found = family->second.series.find(key);
  if (found != family->second.series.end()) return &found->second;
  if (series_count_ >= series_max_) {
    ++dropped_;
    return nullptr;
  }
  ++series_count_;
  Series& series = family->second.series[std::move(key)];
  if (kind == Kind::kHistogram) {
    if (family->second.bounds.empty()) family->second.bounds = kSecondsBounds;
    series.buckets.assign(family->second.bounds.size(), 0);
  }
  return &series;
}

void Registry::add(std::string_view counter, double amount, const base::Labels& labels) {
  const std::lock_guard lock(mutex_);
  if (Series* series = find_or_add(counter, Kind::kCounter, labels)) series->value += amount;
}

void Registry::set(std::string_view gauge, double value, const base::Labels& labels) {
  const std::lock_guard lock(mutex_);
  if (Series* series = find_or_add(gauge, Kind::kGauge, labels)) series->value = value;
}

void Registry::observe(std::string_view histogram, double value, const base::Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series* series = find_or_add(histogram, Kind::kHistogram, labels);
  if (series == nullptr) return;
  const std::vector<double>& bounds = families_.find(histogram)->second.bounds;
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value);
  if (bucket != bounds.end()) ++series->buckets[static_cast<std::size_t>(bucket - bounds.begin())];
  series->value += value;
  ++series->count;
}

void Registry::describe(std::string_view name, std::string_view help, std::vector<double> buckets) {
  const std::lock_guard lock(mutex_);
  Family& family = families_[std::string{name}];
  family.help = help;
  if (!buckets.empty() && family.series.empty()) family.bounds = std::move(buckets);
}

std::string Registry::prometheus_text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    if (family.series.empty()) continue;
    if (!family.help.empty()) fmt::format_to(std::back_inserter(out), "# HELP {} {}\n", name, family.help);
    constexpr std::string_view kKinds[] = {"counter", "gauge", "histogram"};
    fmt::format_to(std::back_inserter(out), "# TYPE {} {}\n", name,
                   kKinds[static_cast<std::size_t>(family.kind)]);
    for (const auto& [labels, series] : family.series) {
      if (family.kind != Kind::kHistogram) {
        fmt::format_to(std::back_inserter(out), "{}{} {}\n", name, with_labels(labels), number(series.value));
        continue;
      }
      const std::string prefix = labels.empty() ? std::string{} : labels + ",";
      std::uint64_t cumulative = 0;
      for (std::size_t i = 0; i < family.bounds.size(); ++i) {
        cumulative += series.buckets[i];
        fmt::format_to(std::back_inserter(out), "{}_bucket{{{}le=\"{}\"}} {}\n", name, prefix,
                       number(family.bounds[i]), cumulative);
      }
      fmt::format_to(std::back_inserter(out),
                     "{0}_bucket{{{1}le=\"+Inf\"}} {2}\n{0}_sum{3} {4}\n{0}_count{3} {2}\n", name, prefix,
                     series.count, with_labels(labels), number(series.value));
    }
  }
  fmt::format_to(
      std::back_inserter(out),
      "# TYPE trimtab_metrics_dropped_series_total counter\ntrimtab_metrics_dropped_series_total {}\n",
      dropped_);
  return out;
}

double Registry::value(std::string_view name, const base::Labels& labels) const {
  const std::lock_guard lock(mutex_);
  const auto family = families_.find(name);
  if (family == families_.end()) return 0;
  const auto series = family->second.series.find(render(labels));
  return series == family->second.series.end() ? 0 : series->second.value;
}

}  // namespace trimtab::obs
