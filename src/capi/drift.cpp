#include "policy/experts/drift.h"

#include <memory>

#include "capi/bridge.h"

namespace capi = trimtab::capi;
namespace experts = trimtab::experts;
using trimtab::base::Status;

struct trimtab_drift {
  experts::DriftDetector detector;
};

namespace {

trimtab_drift_config default_config() {
  const experts::DriftConfig defaults;
  trimtab_drift_config out{};
  out.struct_bytes = static_cast<std::uint32_t>(sizeof(out));
  out.layers = 1;
  out.steps_max = defaults.steps_max;
  out.steps_min = defaults.steps_min;
  out.confirm_steps = defaults.confirm_steps;
  out.quiet_steps = defaults.quiet_steps;
  out.tolerance = defaults.tolerance;
  out.sigmas = defaults.sigmas;
  return out;
}

trimtab_worth_input default_worth() {
  const experts::WorthInput defaults;
  trimtab_worth_input out{};
  out.struct_bytes = static_cast<std::uint32_t>(sizeof(out));
  out.balance_now = defaults.balance_now;
  out.balance_planned = defaults.balance_planned;
  out.gain_kept_ratio = defaults.gain_kept_ratio;
  out.noise_floor = defaults.noise_floor;
  out.stall_ratio = defaults.stall_ratio;
  out.payback_ratio = defaults.payback_ratio;
  return out;
}

}  // namespace

extern "C" {

void trimtab_drift_config_default(trimtab_drift_config* config) {
  if (config != nullptr) *config = default_config();
}

int32_t trimtab_drift_create(const trimtab_drift_config* config, trimtab_drift** out, char* error,
                             size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(out, "out"));
    *out = nullptr;
    TRIMTAB_TRY(capi::need(config, "config"));
    const auto given = capi::options_of(config, default_config(), "trimtab_drift_config_default");
    if (!given) return tl::unexpected(given.error());
    const experts::DriftConfig made{.steps_max = given->steps_max,
                                    .steps_min = given->steps_min,
                                    .tolerance = given->tolerance,
                                    .sigmas = given->sigmas,
                                    .confirm_steps = given->confirm_steps,
                                    .quiet_steps = given->quiet_steps};
    auto detector = experts::DriftDetector::make(made, given->ranks, given->layers);
    if (!detector) return tl::unexpected(std::move(detector).error());
    *out = std::make_unique<trimtab_drift>(trimtab_drift{std::move(*detector)}).release();
    return {};
  });
}

void trimtab_drift_destroy(trimtab_drift* drift) { delete drift; }

int32_t trimtab_drift_promise(trimtab_drift* drift, double balance, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(drift, "drift"));
    return drift->detector.promise(balance);
  });
}

void trimtab_drift_dismiss(trimtab_drift* drift) {
  if (drift != nullptr) drift->detector.dismiss();
}

int32_t trimtab_drift_observe(trimtab_drift* drift, double busiest_tokens, double mean_tokens,
                              trimtab_drift_verdict* verdict, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(drift, "drift"));
    const auto found = drift->detector.observe(busiest_tokens, mean_tokens);
    if (!found) return tl::unexpected(found.error());
    if (verdict == nullptr) return {};
    *verdict = {.alarm = found->alarm ? 1 : 0,
                .steps = found->steps,
                .over = found->over,
                .quiet = found->quiet,
                .promised = found->promised,
                .noise_floor = found->noise_floor,
                .held_out = found->held_out,
                .standard_error = found->standard_error,
                .threshold = found->threshold};
    return {};
  });
}

void trimtab_worth_input_default(trimtab_worth_input* input) {
  if (input != nullptr) *input = default_worth();
}

int32_t trimtab_worth_of(const trimtab_worth_input* input, trimtab_worth* out, char* error,
                         size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(input, "input"));
    TRIMTAB_TRY(capi::need(out, "out"));
    const auto given = capi::options_of(input, default_worth(), "trimtab_worth_input_default");
    if (!given) return tl::unexpected(given.error());
    const auto made = experts::worth({.balance_now = given->balance_now,
                                      .balance_planned = given->balance_planned,
                                      .gain_kept_ratio = given->gain_kept_ratio,
                                      .noise_floor = given->noise_floor,
                                      .step_ns = given->step_ns,
                                      .steps_until_next = given->steps_until_next,
                                      .bytes_busiest_rank = given->bytes_busiest_rank,
                                      .bandwidth_bytes_per_s = given->bandwidth_bytes_per_s,
                                      .stall_ratio = given->stall_ratio,
                                      .payback_ratio = given->payback_ratio});
    if (!made) return tl::unexpected(made.error());
    *out = {.pays = made->pays ? 1 : 0,
            .gain_ns_per_step = made->gain_ns_per_step,
            .gain_ns = made->gain_ns,
            .cost_ns = made->cost_ns,
            .break_even_steps = made->break_even_steps};
    return {};
  });
}

}  // extern "C"
