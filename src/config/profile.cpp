#include "config/profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/strict_table.h"

namespace trimtab::config {

namespace {

constexpr std::int64_t kCoefficientMax = 1'000'000'000'000;  // ps, or FLOPs per row or visible item
constexpr std::int64_t kContextMax = 1 << 24;
constexpr std::int64_t kBytesMax = std::int64_t{1} << 40;
/// FLOPs of one chunk are summed in 64 bits.
constexpr double kFlopsMax = 4e18;

model::QuadraticCost read_quadratic(StrictTable& cost) {
  model::QuadraticCost quadratic;
  cost.require("fixed_ns", quadratic.fixed_ns, 0, kCoefficientMax);
  cost.require("token_ps", quadratic.token_ps, 0, kCoefficientMax);
  cost.require("pair_ps", quadratic.pair_ps, 0, kCoefficientMax);
  return quadratic;
}

std::vector<model::AttentionTerm> read_terms(StrictTable& cost, std::string_view key) {
  std::vector<model::AttentionTerm> terms;
  for (StrictTable& table : cost.tables(key)) {
    model::AttentionTerm& term = terms.emplace_back();
    table.require("name", term.name);
    table.require("flops", term.flops, 0, kCoefficientMax);
    table.read("ratio", term.ratio, 1, 1 << 20);
    table.read("cap", term.cap, 0, 1 << 24);
    table.read("round_up", term.round_up);
    table.read("windowed", term.windowed);
  }
  return terms;
}

/// An upper bound of the FLOPs of any chunk within the context limit.
double flops_bound(const model::FlopsCost& cost, double context) {
  double row = static_cast<double>(cost.attention_row) + static_cast<double>(cost.attention_row_producer) +
               static_cast<double>(cost.attention_row_consumer) +
               static_cast<double>(cost.other_row_producer) + static_cast<double>(cost.other_row_consumer) +
               static_cast<double>(cost.other_moved) + static_cast<double>(cost.key_projection_ratio1) +
               static_cast<double>(cost.key_projection_ratio2);
  for (const auto* terms : {&cost.producer_terms, &cost.consumer_terms}) {
    for (const auto& term : *terms) {
      double visible = context / static_cast<double>(term.ratio) + 1;
      if (term.cap > 0) visible = std::min(visible, static_cast<double>(term.cap));
      row += static_cast<double>(term.flops) * visible;
    }
  }
  return row * context + static_cast<double>(cost.logits_row);
}

model::FlopsCost read_flops(StrictTable& cost, std::int64_t context) {
  model::FlopsCost flops;
  std::size_t mode = 0;
  cost.require("fixed_ns", flops.fixed_ns, 0, kCoefficientMax);
  cost.require("flops_per_second", flops.flops_per_second, 1.0, 1e18);
  cost.require_choice("mode", mode, {"off", "compact"});
  flops.compact = mode == 1;
  cost.read("keep_rows", flops.keep, 0, kContextMax);
  const auto coefficient = [&](std::string_view key, std::int64_t& out) {
    cost.read(key, out, 0, kCoefficientMax);
  };
  coefficient("attention_row", flops.attention_row);
  coefficient("attention_row_producer", flops.attention_row_producer);
  coefficient("attention_row_consumer", flops.attention_row_consumer);
  coefficient("other_row_producer", flops.other_row_producer);
  coefficient("other_row_consumer", flops.other_row_consumer);
  coefficient("other_moved", flops.other_moved);
  coefficient("logits_row", flops.logits_row);
  coefficient("key_projection_ratio1", flops.key_projection_ratio1);
  coefficient("key_projection_ratio2", flops.key_projection_ratio2);
  flops.producer_terms = read_terms(cost, "producer_terms");
  flops.consumer_terms = read_terms(cost, "consumer_terms");
  if (flops.compact && flops.keep < 1) {
    cost.reject("keep_rows", "compact mode keeps at least one row; set keep_rows = 140 or mode = \"off\"");
  }
  if (flops.other_moved > flops.other_row_consumer) {
    cost.reject("other_moved",
                fmt::format("{} is more than other_row_consumer, which it is taken from", flops.other_moved));
  }
  for (const auto& term : flops.producer_terms) {
    if (term.windowed)
      cost.reject("producer_terms", "'windowed' is for consumer terms: producers see every row");
  }
  if (const double bound = flops_bound(flops, static_cast<double>(context)); bound > kFlopsMax) {
    cost.reject("form", fmt::format("a chunk of {} tokens may cost {:.3g} FLOPs; sums hold {:.0g}", context,
                                    bound, kFlopsMax));
  }
  return flops;
}

CalibrationNote read_note(StrictTable table) {
  CalibrationNote note;
  table.read("machine", note.machine);
  table.read("samples", note.samples, 0, INT64_MAX);
  table.read("error_ratio_mean", note.error_ratio_mean, 0.0, 1e9);
  table.read("error_ratio_worst", note.error_ratio_worst, 0.0, 1e9);
  return note;
}

model::CostSpec read_cost(StrictTable root, std::int64_t context) {
  if (!root.has("cost")) root.reject("cost", "this table is required and missing");
  StrictTable cost = root.table("cost");
  std::size_t form = 0;
  cost.require_choice("form", form, {"quadratic", "flops"});
  if (form == 0) return read_quadratic(cost);
  return read_flops(cost, context);
}

model::KvLayout read_kv(StrictTable kv) {
  model::KvLayout layout;
  std::vector<std::int64_t> layers;
  kv.require("block_bytes", layout.block_bytes.value, 1, kBytesMax);
  kv.read("layer_bytes", layers, 1, kBytesMax);
  kv.read("window_tokens", layout.window_tokens, 0, kContextMax);
  kv.read("window_layers", layout.window_layers, 0, 1 << 16);
  kv.read("ring_slots", layout.ring_slots, 0, kContextMax);
  kv.read("state_bytes", layout.state_bytes.value, 0, kBytesMax);
  std::int64_t sum = 0;
  for (const std::int64_t bytes : layers) {
    // Any excess is an error, so the sum need not go on beyond it.
    sum = std::min(sum + bytes, kBytesMax + 1);
    layout.layer_bytes.push_back(base::Bytes{bytes});
  }
  if (sum > layout.block_bytes.value) {
    kv.reject("layer_bytes",
              fmt::format("the layers need {} bytes, a block has {}", sum, layout.block_bytes.value));
  }
  if (layout.ring_slots < layout.window_tokens) {
    kv.reject("ring_slots", fmt::format("{} slots cannot hold a window of {} tokens", layout.ring_slots,
                                        layout.window_tokens));
  }
  return layout;
}

/// Either coefficients, or shares of a step at stated mean loads (the published studies state shares).
model::DecodeStepCost read_decode_step(StrictTable table) {
  model::DecodeStepCost cost;
  std::size_t form = 0;
  table.read_choice("form", form, {"coefficients", "shares"});
  table.read("graph_sizes", cost.graph_sizes, 1, 1 << 20);
  for (std::size_t i = 1; i < cost.graph_sizes.size(); ++i) {
    if (cost.graph_sizes[i] <= cost.graph_sizes[i - 1]) {
      table.reject("graph_sizes", fmt::format("graph_sizes must increase, but {} follows {}",
                                              cost.graph_sizes[i], cost.graph_sizes[i - 1]));
    }
  }
  if (form == 0) {
    table.read("fixed_ns", cost.fixed.value, 0, kCoefficientMax);
    table.read("attention_ns_per_kv_token", cost.attention_ns_per_kv_token, 0.0, 1e9);
    table.read("dispatch_ns_per_request", cost.dispatch_ns_per_request, 0.0, 1e12);
    table.read("moe_ns_per_request", cost.moe_ns_per_request, 0.0, 1e12);
    return cost;
  }
  std::int64_t step_ns = 0;
  double requests = 1, kv = 1, fixed = 0, attention = 0, dispatch = 0, moe = 0;
  table.require("step_ns", step_ns, 1, kCoefficientMax);
  table.require("requests_per_rank", requests, 1e-9, 1e9);
  table.require("kv_tokens_per_rank", kv, 1e-9, 1e15);
  table.require("fixed_share", fixed, 0.0, 1.0);
  table.require("attention_share", attention, 0.0, 1.0);
  table.require("dispatch_share", dispatch, 0.0, 1.0);
  table.require("moe_share", moe, 0.0, 1.0);
  if (const double sum = fixed + attention + dispatch + moe; sum < 0.999 || sum > 1.001) {
    table.reject("fixed_share", fmt::format("the four shares of a step add up to {}, not 1", sum));
  }
  const auto step = static_cast<double>(step_ns);
  cost.fixed = base::Nanos{static_cast<std::int64_t>(fixed * step)};
  cost.attention_ns_per_kv_token = attention * step / kv;
  cost.dispatch_ns_per_request = dispatch * step / requests;
  cost.moe_ns_per_request = moe * step / requests;
  return cost;
}

model::VisionSpec read_vision(StrictTable vision) {
  model::VisionSpec spec;
  std::size_t formula = 0;
  vision.read_choice("formula", formula, {"none", "grid", "deepseek-v4.1"});
  spec.formula = static_cast<model::VisionSpec::Formula>(formula);
  vision.read("patch_pixels", spec.patch, 1, 1 << 12);
  vision.read("downsample", spec.downsample, 1, 1 << 12);
  vision.read("tokens_max", spec.max_tokens, 1, 1 << 20);
  vision.read("pixels_min", spec.min_pixels, 0, kBytesMax);
  vision.read("pixels_max", spec.pixels_max, 0, kBytesMax);
  vision.read("image_token", spec.image_token, -1, INT32_MAX);
  return spec;
}

}  // namespace

base::Result<model::Profile> parse_profile(std::string_view text, const std::string& origin) {
  auto root = StrictTable::parse(text, origin);
  if (!root) return tl::unexpected<base::Error>(std::move(root).error());
  model::Profile profile;
  std::size_t scope = 0;
  root->require("name", profile.name);
  root->require("source", profile.source);
  root->require("context_limit_tokens", profile.context_limit.value, 1, kContextMax);
  root->read_choice("quota_scope", scope, {"attention", "whole_step"});
  profile.quota_scope = static_cast<model::QuotaScope>(scope);
  profile.cost = read_cost(*root, profile.context_limit.value);
  read_note(root->table("calibration"));  // where the cost comes from: checked, and for the reader only
  profile.decode_step = read_decode_step(root->table("decode_step"));
  if (!root->has("kv")) root->reject("kv", "this table is required and missing");
  profile.kv = read_kv(root->table("kv"));
  profile.vision = read_vision(root->table("vision"));
  StrictTable experts = root->table("experts");
  experts.read("count", profile.experts, 0, 1 << 20);
  experts.read("per_token", profile.experts_per_token, 0, 1 << 20);
  experts.read("moe_layers", profile.moe_layers, 0, 1 << 16);
  if (profile.experts_per_token > profile.experts) {
    experts.reject("per_token", fmt::format("{} of {} experts", profile.experts_per_token, profile.experts));
  }
  TRIMTAB_TRY(root->finish());
  return profile;
}

base::Result<model::Profile> load_profile(const std::string& name_or_path, const std::string& profiles_dir) {
  const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".toml");
  const std::string path = is_path ? name_or_path : fmt::format("{}/{}.toml", profiles_dir, name_or_path);
  const auto text = read_text(path);
  if (!text) {
    return base::fail(text.error().code, fmt::format("profile '{}': {}", name_or_path, text.error().message),
                      path);
  }
  return parse_profile(*text, path);
}

std::string cost_toml(const model::QuadraticCost& cost, const CalibrationNote& note) {
  std::string machine;
  // A basic TOML string; control characters would break it.
  for (const char letter : note.machine) {
    if (letter == '"' || letter == '\\') machine += '\\';
    machine += static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f ? ' ' : letter;
  }
  return fmt::format(
      "# Written by a calibration; replaces the profile's cost table. Delete it to calibrate anew.\n"
      "[cost]\nform = \"quadratic\"\nfixed_ns = {}\ntoken_ps = {}\npair_ps = {}\n\n"
      "[calibration]\nmachine = \"{}\"\nsamples = {}\nerror_ratio_mean = {:.6f}\nerror_ratio_worst = "
      "{:.6f}\n",
      cost.fixed_ns, cost.token_ps, cost.pair_ps, machine, note.samples, note.error_ratio_mean,
      note.error_ratio_worst);
}

base::Result<Calibration> load_cost(const std::string& path) {
  auto root = StrictTable::parse_file(path);
  if (!root) return tl::unexpected<base::Error>(std::move(root).error());
  Calibration calibration;
  calibration.cost = read_cost(*root, kContextMax);
  calibration.note = read_note(root->table("calibration"));
  TRIMTAB_TRY(root->finish());
  return calibration;
}

}  // namespace trimtab::config
