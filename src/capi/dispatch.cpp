#include <algorithm>
#include <limits>
#include <memory>

#include "capi/bridge.h"
#include "policy/experts/dispatch/replica.h"
#include "policy/experts/dispatch/share_table.h"
#include "policy/experts/dispatch/shares.h"

namespace capi = trimtab::capi;
namespace experts = trimtab::experts;
using trimtab::base::Status;

struct trimtab_shares {
  experts::ShareSolver solver;
  experts::ShareTable table;
};

namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

extern "C" {

int32_t trimtab_tables(const trimtab_shape* shape, const int32_t* maps, int32_t layers,
                       int32_t* logical_to_physical, int32_t copies_max, int32_t* logical_count, char* error,
                       size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    TRIMTAB_TRY(capi::need(maps, "maps"));
    if (layers < 1) return capi::bad(fmt::format("{} layers: there is at least one", layers));
    return capi::write_tables(*checked, {maps, at(layers) * at(checked->slots)}, copies_max,
                              logical_to_physical, logical_count);
  });
}

int32_t trimtab_replica_of(int64_t rank, int64_t token, int32_t copies) {
  if (rank < 0 || token < 0 || copies < 1) return -1;
  return experts::replica_of(rank, token, copies);
}

int32_t trimtab_shares_create(const trimtab_shape* shape, const int32_t* map, int32_t parts,
                              trimtab_shares** out, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(out, "out"));
    *out = nullptr;
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    TRIMTAB_TRY(capi::need(map, "map"));
    const std::span<const std::int32_t> slots(map, at(checked->slots));
    auto solver = experts::ShareSolver::make(*checked, slots);
    if (!solver) return tl::unexpected(std::move(solver).error());
    auto table = experts::ShareTable::make(*checked, slots, 0, parts);
    if (!table) return tl::unexpected(std::move(table).error());
    *out = std::make_unique<trimtab_shares>(trimtab_shares{std::move(*solver), std::move(*table)}).release();
    return {};
  });
}

void trimtab_shares_destroy(trimtab_shares* shares) { delete shares; }

int32_t trimtab_shares_solve(trimtab_shares* shares, const double* tokens, double* slot_shares,
                             trimtab_share_result* result, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(shares, "shares"));
    TRIMTAB_TRY(capi::need(tokens, "tokens"));
    const experts::Shape& shape = shares->solver.shape();
    const auto solved = shares->solver.solve(std::span(tokens, at(shape.experts)));
    if (!solved) return tl::unexpected(solved.error());
    shares->table.set(shares->solver);
    if (slot_shares != nullptr) shares->solver.shares({slot_shares, at(shape.slots)});
    if (result != nullptr) *result = {solved->peak_tokens, solved->bound_tokens, solved->mean_tokens};
    return {};
  });
}

int32_t trimtab_shares_copies_max(const trimtab_shares* shares) {
  return shares == nullptr ? -1 : shares->table.copies_max();
}

int32_t trimtab_shares_table(const trimtab_shares* shares, uint16_t* table, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::need(shares, "shares"));
    TRIMTAB_TRY(capi::need(table, "table"));
    std::ranges::copy(shares->table.table(), table);
    return {};
  });
}

int32_t trimtab_shares_slot(const trimtab_shares* shares, int32_t expert, int32_t rank, int64_t index,
                            int64_t tokens) {
  if (shares == nullptr) return -1;
  const experts::Shape& shape = shares->solver.shape();
  if (expert < 0 || expert >= shape.experts || rank < 0 || rank >= shape.ranks) return -1;
  if (index < 0 || index >= tokens || tokens > std::numeric_limits<std::int32_t>::max()) return -1;
  return shares->table.slot_of(expert, rank, index, tokens);
}

}  // extern "C"
