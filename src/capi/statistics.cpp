#include "policy/experts/statistics.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "capi/bridge.h"

namespace capi = trimtab::capi;
namespace experts = trimtab::experts;
using trimtab::base::Status;

struct trimtab_statistics {
  experts::Statistics ring;
};

namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

trimtab_statistics_config config_of(const experts::StatisticsConfig& config) {
  trimtab_statistics_config out{};
  out.struct_bytes = static_cast<std::uint32_t>(sizeof(out));
  out.shape = capi::shape_of(config.shape);
  out.layers = config.layers;
  out.window_steps = config.window_steps;
  out.local_rank = config.local_rank;
  out.interval_steps = config.interval_steps;
  out.memory_bytes_max = config.memory_bytes_max;
  return out;
}

trimtab::base::Result<experts::StatisticsConfig> config_of(const trimtab_statistics_config* given) {
  TRIMTAB_TRY(capi::need(given, "config"));
  const auto filled =
      capi::options_of(given, config_of(experts::StatisticsConfig{}), "trimtab_statistics_preset");
  if (!filled) return tl::unexpected(filled.error());
  return experts::StatisticsConfig{.shape = capi::shape_of(filled->shape),
                                   .layers = filled->layers,
                                   .window_steps = filled->window_steps,
                                   .interval_steps = filled->interval_steps,
                                   .local_rank = filled->local_rank,
                                   .memory_bytes_max = filled->memory_bytes_max};
}

}  // namespace

extern "C" {

int32_t trimtab_statistics_preset(int32_t phase, int32_t expert_count, int32_t ranks, int32_t layers,
                                  trimtab_statistics_config* config, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(config, "config"));
    if (phase != TRIMTAB_PHASE_PREFILL && phase != TRIMTAB_PHASE_DECODE)
      return capi::bad(fmt::format("phase {} is neither prefill (0) nor decode (1)", phase));
    const auto preset =
        experts::preset(phase == TRIMTAB_PHASE_PREFILL ? experts::Phase::kPrefill : experts::Phase::kDecode,
                        expert_count, ranks, layers);
    TRIMTAB_TRY(experts::check(preset));
    *config = config_of(preset);
    return {};
  });
}

int64_t trimtab_statistics_memory_bytes(const trimtab_statistics_config* config) {
  const auto made = config_of(config);
  if (!made) return -1;
  experts::StatisticsConfig unbounded = *made;
  unbounded.memory_bytes_max = std::numeric_limits<std::int64_t>::max();
  return experts::check(unbounded) ? experts::Statistics::memory_bytes(unbounded) : -1;
}

int32_t trimtab_statistics_create(const trimtab_statistics_config* config, const int32_t* maps,
                                  trimtab_statistics** out, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(out, "out"));
    *out = nullptr;
    const auto made = config_of(config);
    if (!made) return tl::unexpected(made.error());
    TRIMTAB_TRY(experts::check(*made));
    TRIMTAB_TRY(capi::need(maps, "maps"));
    auto ring = experts::Statistics::make(*made, {maps, at(made->layers) * at(made->shape.slots)});
    if (!ring) return tl::unexpected(std::move(ring).error());
    *out = std::make_unique<trimtab_statistics>(trimtab_statistics{std::move(*ring)}).release();
    return {};
  });
}

void trimtab_statistics_destroy(trimtab_statistics* statistics) { delete statistics; }

int32_t trimtab_statistics_set_map(trimtab_statistics* statistics, int32_t layer, const int32_t* map,
                                   char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(statistics, "statistics"));
    TRIMTAB_TRY(capi::need(map, "map"));
    return statistics->ring.set_map(layer, {map, at(statistics->ring.config().shape.slots)});
  });
}

int32_t trimtab_statistics_add(trimtab_statistics* statistics, int32_t rank, const int32_t* counts,
                               const int32_t* padding, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(statistics, "statistics"));
    TRIMTAB_TRY(capi::need(counts, "counts"));
    const experts::StatisticsConfig& config = statistics->ring.config();
    const std::size_t size = at(config.layers) * at(config.shape.slots_per_rank());
    return statistics->ring.add(rank, {counts, size}, {padding, padding == nullptr ? 0 : size});
  });
}

int32_t trimtab_statistics_end_step(trimtab_statistics* statistics, int32_t ignore) {
  if (statistics == nullptr) return -1;
  const auto use = ignore != 0 ? experts::StepUse::kIgnore : experts::StepUse::kCount;
  return static_cast<std::int32_t>(statistics->ring.end_step(use));
}

int32_t trimtab_statistics_due(const trimtab_statistics* statistics) {
  return statistics != nullptr && statistics->ring.due() ? 1 : 0;
}

int64_t trimtab_statistics_overdue_steps(const trimtab_statistics* statistics) {
  return statistics == nullptr ? -1 : statistics->ring.overdue_steps();
}

void trimtab_statistics_restart_interval(trimtab_statistics* statistics) {
  if (statistics != nullptr) statistics->ring.restart_interval();
}

int32_t trimtab_statistics_steps(const trimtab_statistics* statistics) {
  return statistics == nullptr ? -1 : statistics->ring.steps();
}

int32_t trimtab_statistics_windows(const trimtab_statistics* statistics, int64_t* loads, char* error,
                                   size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(statistics, "statistics"));
    TRIMTAB_TRY(capi::need(loads, "loads"));
    std::ranges::copy(statistics->ring.windows(), loads);
    return {};
  });
}

double trimtab_statistics_balance(const trimtab_statistics* statistics, int32_t steps) {
  return statistics == nullptr ? 1 : statistics->ring.measured_balance(steps);
}

}  // extern "C"
