#include <algorithm>
#include <memory>

#include "capi/bridge.h"
#include "policy/experts/moves/move_plan.h"

namespace capi = trimtab::capi;
namespace experts = trimtab::experts;
using trimtab::base::Status;

struct trimtab_move_plan {
  experts::MovePlan plan;
};

namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

trimtab_move_options default_options() {
  const experts::MoveOptions defaults;
  trimtab_move_options out{};
  out.struct_bytes = static_cast<std::uint32_t>(sizeof(out));
  out.staging_slots = defaults.staging_slots;
  out.keep_old_map = defaults.keep_old_map ? 1 : 0;
  out.same_node_first = defaults.same_node_first ? 1 : 0;
  return out;
}

experts::MoveOptions options_of(const trimtab_move_options& given) {
  experts::MoveOptions out;
  out.staging_slots = given.staging_slots;
  out.keep_old_map = given.keep_old_map != 0;
  out.same_node_first = given.same_node_first != 0;
  out.budget = {.bytes_per_copy = given.bytes_per_copy,
                .link_bytes_per_s = given.link_bytes_per_s,
                .node_link_bytes_per_s = given.node_link_bytes_per_s,
                .local_bytes_per_s = given.local_bytes_per_s,
                .stall_ns = given.stall_ns};
  return out;
}

bool has_batch(const trimtab_move_plan* plan, std::int32_t batch) {
  return plan != nullptr && batch >= 0 && at(batch) < plan->plan.batches.size();
}

}  // namespace

extern "C" {

void trimtab_move_options_default(trimtab_move_options* options) {
  if (options != nullptr) *options = default_options();
}

int32_t trimtab_move_plan_create(const trimtab_shape* old, const int32_t* before, const trimtab_shape* shape,
                                 const int32_t* after, const int32_t* rank_before, const int32_t* lost,
                                 int32_t lost_count, const trimtab_move_options* options,
                                 trimtab_move_plan** out, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(out, "out"));
    *out = nullptr;
    const auto old_shape = capi::checked_shape(old, "old");
    if (!old_shape) return tl::unexpected(old_shape.error());
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    TRIMTAB_TRY(capi::need(before, "before"));
    TRIMTAB_TRY(capi::need(after, "after"));
    if (lost_count < 0) return capi::bad(fmt::format("{} lost ranks: use 0 for none", lost_count));
    if (lost_count > 0) TRIMTAB_TRY(capi::need(lost, "lost"));
    const auto chosen = capi::options_of(options, default_options(), "trimtab_move_options_default");
    if (!chosen) return tl::unexpected(chosen.error());
    experts::MoveRequest request{.before = *old_shape,
                                 .after = *checked,
                                 .map_before = {before, at(old_shape->slots)},
                                 .map_after = {after, at(checked->slots)},
                                 .rank_before = {},
                                 .lost = {},
                                 .options = options_of(*chosen)};
    if (rank_before != nullptr) request.rank_before = {rank_before, at(checked->ranks)};
    if (lost_count > 0) request.lost = {lost, at(lost_count)};
    auto plan = experts::plan_moves(request);
    if (!plan) return tl::unexpected(std::move(plan).error());
    *out = std::make_unique<trimtab_move_plan>(trimtab_move_plan{std::move(*plan)}).release();
    return {};
  });
}

void trimtab_move_plan_destroy(trimtab_move_plan* plan) { delete plan; }

int32_t trimtab_move_plan_summary(const trimtab_move_plan* plan, trimtab_move_summary* out, char* error,
                                  size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(plan, "plan"));
    TRIMTAB_TRY(capi::need(out, "out"));
    const experts::MovePlan& made = plan->plan;
    *out = {.hosts = made.hosts,
            .width = made.width,
            .staging = made.staging,
            .batches = static_cast<std::int32_t>(made.batches.size()),
            .slices = made.slices,
            .commit_batch = made.commit_batch,
            .staging_used = made.staging_used,
            .staging_serves = made.staging_serves ? 1 : 0,
            .reloaded = static_cast<std::int32_t>(made.reloaded.size()),
            .received = made.received(),
            .sends_max = made.sends_max(),
            .sends_max_bound = made.sends_max_bound,
            .receives_max = made.receives_max(),
            .stall_ns = made.stall_ns};
    return {};
  });
}

int32_t trimtab_move_plan_batch_size(const trimtab_move_plan* plan, int32_t batch) {
  return has_batch(plan, batch) ? static_cast<std::int32_t>(plan->plan.batches[at(batch)].size()) : -1;
}

int32_t trimtab_move_plan_batch(const trimtab_move_plan* plan, int32_t batch, trimtab_move* moves,
                                char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(plan, "plan"));
    TRIMTAB_TRY(capi::need(moves, "moves"));
    if (!has_batch(plan, batch))
      return capi::bad(fmt::format("batch {} is not one of the plan's {}", batch, plan->plan.batches.size()));
    for (const experts::Move& move : plan->plan.batches[at(batch)]) {
      *moves++ = {.kind = static_cast<std::int32_t>(move.kind),
                  .expert = move.expert,
                  .from_host = move.from.host,
                  .from_slot = move.from.slot,
                  .to_host = move.to.host,
                  .to_slot = move.to.slot};
    }
    return {};
  });
}

int32_t trimtab_move_plan_hosts(const trimtab_move_plan* plan, int64_t* counts, char* error,
                                size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(plan, "plan"));
    TRIMTAB_TRY(capi::need(counts, "counts"));
    for (const experts::HostMoves& host : plan->plan.by_host) {
      *counts++ = host.sends;
      *counts++ = host.receives;
      *counts++ = host.locals;
      *counts++ = host.reloads;
    }
    return {};
  });
}

int32_t trimtab_move_plan_valid(const trimtab_move_plan* plan, int32_t batch, int32_t running,
                                int32_t* places, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(plan, "plan"));
    TRIMTAB_TRY(capi::need(places, "places"));
    if (batch < 0 || at(batch) > plan->plan.batches.size())
      return capi::bad(fmt::format("batch {} is not one of the plan's {}", batch, plan->plan.batches.size()));
    std::ranges::copy(experts::valid_places(plan->plan, batch, running != 0), places);
    return {};
  });
}

}  // extern "C"
