#include "policy/speculate/group_time.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::policy {

namespace {
constexpr double kContextScale = 1e-3;        // keeps the sums of rows and contexts of one size
constexpr double kClampAfterSteps = 20;       // before that, predictions are no yardstick
constexpr double kContextVarianceMin = 1e-9;  // relative: below it contexts did not vary
}  // namespace

GroupTimeModel::GroupTimeModel(const StepCurve& curve, GroupTimeConfig config)
    : curve_(&curve), config_(config) {
  const CurvePoint& first = curve.points().front();
  const CurvePoint& last = curve.points().back();
  if (last.graph_tokens > first.graph_tokens) {
    row_prior_ns_ = static_cast<double>((last.base - first.base).value) /
                    static_cast<double>(last.graph_tokens - first.graph_tokens);
  }
  row_prior_ns_ = std::max(row_prior_ns_, 1.0);
}

double GroupTimeModel::predict_ns(std::size_t index, std::int64_t kv_tokens) const {
  const CurvePoint& point = curve_->points()[index];
  const double excess =
      fixed_ + row_ * static_cast<double>(point.graph_tokens) + context_ * static_cast<double>(kv_tokens);
  return std::max(static_cast<double>(point.base.value) + excess, 1.0);
}

void GroupTimeModel::observe(std::size_t index, std::int64_t kv_tokens, Nanos step) {
  TRIMTAB_CHECK(index < curve_->size(), std::to_string(index));
  double actual = static_cast<double>(step.value);
  if (weight_ >= kClampAfterSteps) {
    // One suspended process must not teach hundreds of steps a false time.
    const double predicted = predict_ns(index, kv_tokens);
    actual =
        std::clamp(actual, predicted * (1 - config_.outlier_ratio), predicted * (1 + config_.outlier_ratio));
  }
  const CurvePoint& point = curve_->points()[index];
  const double y = actual - static_cast<double>(point.base.value);
  const double g = static_cast<double>(point.graph_tokens);
  const double k = static_cast<double>(kv_tokens) * kContextScale;
  for (double* sum : {&weight_, &g_, &k_, &y_, &gg_, &gk_, &kk_, &gy_, &ky_}) *sum *= config_.keep_ratio;
  weight_ += 1;
  g_ += g;
  k_ += k;
  y_ += y;
  gg_ += g * g;
  gk_ += g * k;
  kk_ += k * k;
  gy_ += g * y;
  ky_ += k * y;
  solve();
}

/// Centred normal equations of two slopes; of the four sets of slopes that may be above 0 the best feasible.
void GroupTimeModel::solve() {
  const auto centred = [this](double product, double a, double b) { return product - a * b / weight_; };
  const double mean_step = y_ / weight_ + static_cast<double>(curve_->points().front().base.value);
  // Scatter over what the prior lets a row cost, in rows: the prior weighs like one step that far off.
  const double prior_rows = config_.noise_ratio * std::max(mean_step, 0.0) / row_prior_ns_;
  const double gg = centred(gg_, g_, g_) + prior_rows * prior_rows;
  const double kk = centred(kk_, k_, k_);
  const double gk = centred(gk_, g_, k_), gy = centred(gy_, g_, y_), ky = centred(ky_, k_, y_);
  const bool context_varied = kk > kContextVarianceMin * kk_;
  double row = 0, context = 0;
  const double determinant = gg * kk - gk * gk;
  if (context_varied && determinant > 1e-9 * gg * kk) {
    row = (gy * kk - ky * gk) / determinant;
    context = (ky * gg - gy * gk) / determinant;
  }
  if (!context_varied || row < 0 || context < 0 || determinant <= 1e-9 * gg * kk) {
    // One of the two alone; with a convex error the better of them is the constrained optimum.
    const double row_alone = gg > 0 ? std::max(gy / gg, 0.0) : 0;
    const double context_alone = context_varied ? std::max(ky / kk, 0.0) : 0;
    const bool row_better = row_alone * gy >= context_alone * ky;
    row = row_better ? row_alone : 0;
    context = row_better ? 0 : context_alone;
  }
  row_ = row;
  context_ = context * kContextScale;
  fixed_ = (y_ - row * g_ - context * k_) / weight_;
}

}  // namespace trimtab::policy
