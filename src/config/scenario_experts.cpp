#include "config/scenario_experts.h"

#include <fmt/format.h>

namespace trimtab::config {
namespace {

constexpr std::int64_t kStepsMax = 1'000'000'000;

void read_side(StrictTable table, model::ExpertSide& out) {
  table.read("redundant_slots_per_rank", out.redundant_slots_per_rank, 0, 1'024);
  table.read("interval_steps", out.interval_steps, 0, kStepsMax);
  table.read("window_steps", out.window_steps, 0, 10'000);
  table.read("epoch_steps", out.epoch_steps, 1, kStepsMax);
  table.read("drift_steps", out.drift_steps, 0.0, 1e12);
  if (out.interval_steps > 0 && out.window_steps > out.interval_steps) {
    table.reject("window_steps",
                 fmt::format("a window of {} steps does not fit into an interval of {}: shorten the window",
                             out.window_steps, out.interval_steps));
  }
}

void read_ns(StrictTable& table, std::string_view key, base::Nanos& out) {
  table.read(key, out.value, 0, 1'000'000'000'000);
}

}  // namespace

const std::vector<std::string_view>& expert_policy_words() {
  static const std::vector<std::string_view> words{"constant",  "off",         "redundancy",
                                                   "deepinfer", "incremental", "repair"};
  return words;
}

const std::vector<std::string_view>& verify_policy_words() {
  static const std::vector<std::string_view> words{"off", "fixed", "published", "group"};
  return words;
}

void read_experts(StrictTable table, model::ExpertModel& out) {
  auto policy = static_cast<std::size_t>(out.policy), skew = static_cast<std::size_t>(out.skew);
  table.read_choice("policy", policy, expert_policy_words());
  out.policy = static_cast<model::ExpertPolicy>(policy);
  table.read("experts", out.experts, 0, 65'536);
  table.read("per_token", out.per_token, 0, 1'024);
  table.read("layers", out.layers, 1, 1'024);
  table.read("model_layers", out.model_layers, 0, 1'024);
  table.read_choice("skew", skew, {"lognormal", "zipf"});
  out.skew = static_cast<model::ExpertSkew>(skew);
  table.read("skew_amount", out.skew_amount, 0.0, 5.0);
  table.read("domains", out.domains, 1, 256);
  table.read("domain_share", out.domain_share, 0.0, 1.0);
  table.read("mix_spread", out.mix_spread, 0.0, 10.0);
  table.read("routing", out.routing);
  table.read("routing_windows", out.routing_windows, 1, 100'000);
  table.read("estimate_steps", out.estimate_steps, 2, 10'000);
  table.read("bytes_per_copy", out.bytes_per_copy, 0.0, 1e15);
  table.read("move_bytes_per_s", out.move_bytes_per_s, 1.0, 1e15);
  table.read("memory_bytes_per_s", out.memory_bytes_per_s, 0.0, 1e15);
  table.read("stall_us", out.stall_us, 0, 3'600'000'000);
  read_side(table.table("prefill"), out.prefill);
  read_side(table.table("decode"), out.decode);
}

void read_verify(StrictTable table, model::VerifyModel& out) {
  auto policy = static_cast<std::size_t>(out.policy);
  table.read_choice("policy", policy, verify_policy_words());
  out.policy = static_cast<model::VerifyPolicy>(policy);
  table.read("drafts", out.drafts, 1, 32);
  table.read("accept_mean", out.accept_mean, -20.0, 20.0);
  table.read("accept_request_sigma", out.accept_request_sigma, 0.0, 10.0);
  table.read("accept_round_sigma", out.accept_round_sigma, 0.0, 10.0);
  table.read("accept_position", out.accept_position, -10.0, 10.0);
  read_ns(table, "weights_ns", out.weights);
  read_ns(table, "unprofiled_ns", out.unprofiled);
  read_ns(table, "sampler_ns", out.sampler);
  table.read("sampler_row_ns", out.sampler_row_ns, 0.0, 1e9);
}

}  // namespace trimtab::config
