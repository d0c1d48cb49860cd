#include "experts_host/plan_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>

#include "policy/experts/load_window.h"

namespace trimtab::experts_host {
namespace {

using experts::LoadWindow;
using experts::Plan;

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "experts_host");
}

template <class T>
base::Result<Plan> plan_one(const experts::Shape& shape, const T* loads, std::int32_t steps,
                            std::int32_t layers, std::int32_t layer, std::span<const std::int32_t> current,
                            const experts::PlanOptions& options) {
  const auto stride = static_cast<std::ptrdiff_t>(layers) * shape.experts;
  const T* first = loads + static_cast<std::ptrdiff_t>(layer) * shape.experts;
  auto window = LoadWindow::make(first, steps, shape.experts, stride);
  if (!window) return tl::unexpected(std::move(window).error());
  return experts::plan_layer(shape, *window, current, options);
}

template <class T>
base::Result<std::vector<Plan>> plan_all(const experts::Shape& shape, const T* loads, std::int32_t steps,
                                         std::int32_t layers, std::span<const std::int32_t> current,
                                         const experts::PlanOptions& options, std::int32_t threads) {
  TRIMTAB_TRY(experts::check(shape));
  if (layers < 1) return bad(fmt::format("{} layers: there is at least one", layers));
  if (threads < 0) return bad(fmt::format("{} threads: use 0 for all cores, or a count", threads));
  const auto count = static_cast<std::size_t>(layers);
  if (current.size() % count != 0) {
    return bad(
        fmt::format("the current maps have {} slots in all, which {} layers do not divide: pass [{}, {}]",
                    current.size(), layers, layers, shape.slots));
  }
  const std::size_t width = current.size() / count;
  std::vector<std::optional<base::Result<Plan>>> found(count);
  each_layer(layers, threads, [&](std::int32_t layer) {
    const auto at = static_cast<std::size_t>(layer);
    found[at].emplace(
        plan_one(shape, loads, steps, layers, layer, current.subspan(at * width, width), options));
  });
  std::vector<Plan> plans;
  plans.reserve(count);
  for (std::size_t layer = 0; layer < count; ++layer) {
    base::Result<Plan>& result = *found[layer];
    if (!result) {
      base::Error error = std::move(result).error();
      error.message = fmt::format("layer {}: {}", layer, error.message);
      return tl::unexpected(std::move(error));
    }
    plans.push_back(std::move(*result));
  }
  return plans;
}

}  // namespace

std::int32_t threads_for(std::int32_t asked, std::int32_t layers) {
  const auto cores = static_cast<std::int32_t>(std::min(std::thread::hardware_concurrency(), 1024U));
  return std::max(1, std::min(asked == 0 ? cores : asked, layers));
}

void each_layer(std::int32_t layers, std::int32_t threads, const std::function<void(std::int32_t)>& work) {
  std::atomic<std::int32_t> next{0};
  const auto run = [&] {
    for (std::int32_t layer = next.fetch_add(1); layer < layers; layer = next.fetch_add(1)) work(layer);
  };
  std::vector<std::thread> helpers;
  const std::int32_t count = threads_for(threads, layers);
  helpers.reserve(static_cast<std::size_t>(count));
  try {
    for (std::int32_t i = 1; i < count; ++i) helpers.emplace_back(run);
  } catch (const std::system_error&) {
    // No more threads to be had: the result is the same, only later.
  }
  run();
  for (std::thread& helper : helpers) helper.join();
}

base::Result<std::vector<Plan>> plan_layers(const experts::Shape& shape, const std::int32_t* loads,
                                            std::int32_t steps, std::int32_t layers,
                                            std::span<const std::int32_t> current,
                                            const experts::PlanOptions& options, std::int32_t threads) {
  return plan_all(shape, loads, steps, layers, current, options, threads);
}
base::Result<std::vector<Plan>> plan_layers(const experts::Shape& shape, const std::int64_t* loads,
                                            std::int32_t steps, std::int32_t layers,
                                            std::span<const std::int32_t> current,
                                            const experts::PlanOptions& options, std::int32_t threads) {
  return plan_all(shape, loads, steps, layers, current, options, threads);
}
base::Result<std::vector<Plan>> plan_layers(const experts::Shape& shape, const float* loads,
                                            std::int32_t steps, std::int32_t layers,
                                            std::span<const std::int32_t> current,
                                            const experts::PlanOptions& options, std::int32_t threads) {
  return plan_all(shape, loads, steps, layers, current, options, threads);
}
base::Result<std::vector<Plan>> plan_layers(const experts::Shape& shape, const double* loads,
                                            std::int32_t steps, std::int32_t layers,
                                            std::span<const std::int32_t> current,
                                            const experts::PlanOptions& options, std::int32_t threads) {
  return plan_all(shape, loads, steps, layers, current, options, threads);
}

std::vector<std::int32_t> maps_of(std::span<const Plan> plans) {
  std::vector<std::int32_t> maps;
  for (const Plan& plan : plans) maps.insert(maps.end(), plan.map.begin(), plan.map.end());
  return maps;
}

}  // namespace trimtab::experts_host
