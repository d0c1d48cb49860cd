#include "capi/bridge.h"

#include <algorithm>

#include "policy/experts/dispatch/tables.h"

namespace trimtab::capi {

void write_error(std::string_view message, char* error, std::size_t bytes) {
  if (error == nullptr || bytes == 0) return;
  std::size_t length = std::min(message.size(), bytes - 1);
  // Bytes 10xxxxxx go on with a character that begins before the cut.
  while (length < message.size() && length > 0 &&
         (static_cast<unsigned char>(message[length]) & 0xc0U) == 0x80U)
    --length;
  std::memcpy(error, message.data(), length);
  error[length] = '\0';
}

std::int32_t code_of(base::Code code) {
  switch (code) {
    case base::Code::kResourceExhausted:
      return TRIMTAB_RESOURCE_EXHAUSTED;
    case base::Code::kInternal:
    case base::Code::kDataLoss:
      return TRIMTAB_INTERNAL;
    default:
      return TRIMTAB_INVALID_ARGUMENT;
  }
}

base::Status need(const void* pointer, const char* what) {
  if (pointer != nullptr) return {};
  return bad(fmt::format("{} is NULL", what));
}

experts::Shape shape_of(const trimtab_shape& shape) {
  return {.experts = shape.experts,
          .slots = shape.slots,
          .ranks = shape.ranks,
          .nodes = shape.nodes,
          .groups = shape.groups};
}

trimtab_shape shape_of(const experts::Shape& shape) {
  return {shape.experts, shape.slots, shape.ranks, shape.nodes, shape.groups};
}

base::Result<experts::Shape> checked_shape(const trimtab_shape* shape, const char* what) {
  TRIMTAB_TRY(need(shape, what));
  const experts::Shape out = shape_of(*shape);
  TRIMTAB_TRY(experts::check(out));
  return out;
}

trimtab_plan_options default_plan_options() {
  const experts::PlanOptions defaults;
  trimtab_plan_options out{};
  out.struct_bytes = static_cast<std::uint32_t>(sizeof(out));
  out.start = static_cast<std::int32_t>(defaults.start);
  out.scope = static_cast<std::int32_t>(defaults.scope);
  out.effort = static_cast<std::int32_t>(defaults.effort);
  out.moves_max = defaults.moves_max;
  out.threads = 1;
  out.move_price = defaults.move_price;
  out.recency_steps = defaults.recency_steps;
  out.seed = defaults.seed;
  return out;
}

base::Result<experts::PlanOptions> plan_options_of(const trimtab_plan_options& given) {
  const auto in = [](const char* what, std::int32_t value, std::int32_t last) -> base::Status {
    if (value >= 0 && value <= last) return {};
    return bad(fmt::format("{} is {}, which is not one of 0 to {}", what, value, last));
  };
  TRIMTAB_TRY(in("start", given.start, TRIMTAB_START_INCREMENTAL));
  TRIMTAB_TRY(in("scope", given.scope, TRIMTAB_SCOPE_HIERARCHICAL));
  TRIMTAB_TRY(in("effort", given.effort, TRIMTAB_EFFORT_QUALITY));
  experts::PlanOptions out;
  out.start = static_cast<experts::Start>(given.start);
  out.scope = static_cast<experts::Scope>(given.scope);
  out.effort = static_cast<experts::Effort>(given.effort);
  out.moves_max = given.moves_max;
  out.move_price = given.move_price;
  out.recency_steps = given.recency_steps;
  out.seed = given.seed;
  return out;
}

void write_reason(const experts::PlanReason& reason, trimtab_plan_reason* out) {
  if (out == nullptr) return;
  *out = {reason.balance_before, reason.balance,      reason.received,
          reason.swaps,          reason.replacements, reason.walk_steps};
}

base::Status write_tables(const experts::Shape& shape, std::span<const std::int32_t> maps,
                          std::int32_t copies_max, std::int32_t* logical_to_physical,
                          std::int32_t* logical_count) {
  TRIMTAB_TRY(need(logical_to_physical, "logical_to_physical"));
  TRIMTAB_TRY(need(logical_count, "logical_count"));
  auto tables = experts::dispatch_tables(shape, maps, experts::TableWidth::kTightest);
  if (!tables) return tl::unexpected(std::move(tables).error());
  if (tables->copies_max > copies_max) {
    return bad(
        fmt::format("an expert has {} copies, logical_to_physical has room for {}: use copies_max {}, or {}, "
                    "which is enough for any plan",
                    tables->copies_max, copies_max, tables->copies_max, shape.ranks));
  }
  const auto from = static_cast<std::size_t>(tables->copies_max), to = static_cast<std::size_t>(copies_max);
  for (std::size_t row = 0; row < tables->logical_count.size(); ++row) {
    const auto first = tables->logical_to_physical.begin() + static_cast<std::ptrdiff_t>(row * from);
    std::int32_t* out =
        std::copy(first, first + static_cast<std::ptrdiff_t>(from), logical_to_physical + row * to);
    std::fill(out, logical_to_physical + (row + 1) * to, -1);
  }
  std::ranges::copy(tables->logical_count, logical_count);
  return {};
}

}  // namespace trimtab::capi
