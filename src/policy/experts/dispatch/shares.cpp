#include "policy/experts/dispatch/shares.h"

#include <fmt/format.h>

#include "base/check.h"

namespace trimtab::experts {
base::Result<ShareSolver> ShareSolver::make(const Shape& shape, std::span<const std::int32_t> map,
                                            const ShareOptions& options) {
  TRIMTAB_TRY(check(shape, map, /*distinct=*/false));
  ShareSolver solver;
  solver.options_ = options;
  solver.flow_.reset(shape, map);
  return solver;
}

base::Result<ShareResult> ShareSolver::solve(std::span<const double> tokens) { return solve_any(tokens); }
base::Result<ShareResult> ShareSolver::solve(std::span<const std::int64_t> tokens) {
  return solve_any(tokens);
}
base::Result<ShareResult> ShareSolver::solve(std::span<const std::int32_t> tokens) {
  return solve_any(tokens);
}

template <class T>
base::Result<ShareResult> ShareSolver::solve_any(std::span<const T> tokens) {
  if (tokens.size() != static_cast<std::size_t>(shape().experts)) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("loads of {} experts for a layer of {}", tokens.size(), shape().experts),
                      "policy/experts");
  }
  if (!flow_.load(tokens)) return bad_loads(tokens);
  flow_.even();
  for (std::int32_t i = 0; i < options_.sweeps_before; ++i) flow_.sweep();
  if (options_.optimal) {
    flow_.level();
    for (std::int32_t i = 0; i < options_.sweeps_after; ++i) flow_.sweep();
  }
  const double unit = flow_.unit_tokens();
  return ShareResult{.peak_tokens = static_cast<double>(flow_.peak()) * unit,
                     .bound_tokens = static_cast<double>(flow_.bound_units()) * unit,
                     .mean_tokens = static_cast<double>(flow_.total()) * unit / shape().ranks};
}

double ShareSolver::share(std::int32_t slot) const {
  const std::int32_t expert = map()[static_cast<std::size_t>(slot)];
  const std::int64_t whole = flow_.expert_units()[static_cast<std::size_t>(expert)];
  if (whole > 0) {
    return static_cast<double>(flow_.slot_units()[static_cast<std::size_t>(slot)]) /
           static_cast<double>(whole);
  }
  return flow_.is_host(slot) ? 1.0 / flow_.hosts(expert) : 0.0;
}

void ShareSolver::shares(std::span<double> out) const {
  TRIMTAB_CHECK(out.size() == map().size());
  for (std::int32_t slot = 0; slot < shape().slots; ++slot) {
    out[static_cast<std::size_t>(slot)] = share(slot);
  }
}

}  // namespace trimtab::experts
