#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/instance.h"
#include "apps/pool_commands.h"
#include "config/profile.h"
#include "policy/swap_in/planner.h"
#include "report/table.h"
#include "swap_in/measure.h"
#include "swap_in/memcpy_backend.h"
#if TRIMTAB_CUDA
#include <cuda_runtime_api.h>

#include "swap_in/cuda/cuda_backends.h"
#endif

namespace trimtab::apps {
namespace {

struct SwapInOptions {
  std::string profile = "deepseek-v4.1-flash", profiles_dir;
  std::uint32_t blocks = 512;
  double pass_ms = 20;
  int device = 0;
  bool as_json = false;
};

constexpr std::size_t kArena = 64U << 20;

/// What this machine can do, measured, and why the rest of it cannot be.
struct Measured {
  std::vector<policy::SwapBackendCost> costs;
  std::vector<std::string> absent;
};

#if TRIMTAB_CUDA
base::Status measure_cuda(const SwapInOptions& options, std::span<std::byte> arena, Measured& measured) {
  TRIMTAB_TRY(swap_in::cuda::use_device(options.device));
  const auto pinned = swap_in::cuda::HostRegistration::pin(arena);
  if (!pinned) return tl::unexpected<base::Error>(pinned.error());
  void* memory = nullptr;
  if (cudaMalloc(&memory, arena.size()) != cudaSuccess)
    return base::fail(
        base::Code::kResourceExhausted,
        fmt::format("device {} has no {} MiB left to measure with", options.device, kArena >> 20));
  const std::unique_ptr<void, void (*)(void*)> owner(memory, [](void* p) { cudaFree(p); });
  const std::span device{static_cast<std::byte*>(memory), arena.size()};
  for (auto& made :
       {swap_in::cuda::make_copy_engine(options.device),
        swap_in::cuda::make_copy_engine_batch(options.device), swap_in::cuda::make_gather(options.device)}) {
    if (!made) return tl::unexpected<base::Error>(made.error());
    auto cost = swap_in::measure(**made, arena, device);
    if (!cost) return tl::unexpected<base::Error>(cost.error());
    measured.costs.push_back(std::move(*cost));
  }
  return {};
}
#else
base::Status measure_cuda(const SwapInOptions&, std::span<std::byte>, Measured&) {
  return base::fail(base::Code::kUnavailable, "built without CUDA (no nvcc was found, or TRIMTAB_CUDA=OFF)");
}
#endif

base::Result<Measured> measure_all(const SwapInOptions& options) {
  Measured measured;
  std::vector<std::byte> arena(kArena, std::byte{1}), other(kArena, std::byte{2});
  swap_in::MemcpyBackend memcpy;
  auto cost = swap_in::measure(memcpy, arena, other);
  if (!cost) return tl::unexpected<base::Error>(cost.error());
  if (const auto cuda = measure_cuda(options, arena, measured); !cuda)
    measured.absent.push_back("cuda: " + cuda.error().message);
  // A copy into host memory is no way into a device, so it stands here only where there is none.
  if (measured.costs.empty()) measured.costs.push_back(std::move(*cost));
  return measured;
}

std::vector<policy::SwapLayer> layers_of(const model::Profile& profile, const SwapInOptions& options) {
  std::vector<policy::SwapLayer> layers;
  const auto& bytes = profile.kv.layer_bytes;
  for (const base::Bytes layer : bytes)
    layers.push_back({options.blocks, options.blocks * static_cast<std::uint64_t>(layer.value), 0,
                      options.pass_ms * 1e6 / static_cast<double>(bytes.size())});
  return layers;
}

void print(const Measured& measured, const policy::SwapChoice& choice,
           std::span<const policy::SwapLayer> layers) {
  report::Table table({{"way", report::Align::kLeft},
                       {"call us"},
                       {"copy ns"},
                       {"on device ns"},
                       {"GB/s"},
                       {"per call"},
                       {"lost ms"},
                       {"hidden"}});
  for (std::size_t i = 0; i < measured.costs.size(); ++i) {
    const policy::SwapBackendCost& cost = measured.costs[i];
    const auto own = policy::choose_swap({&cost, 1}, layers);
    if (!own) continue;
    table.add_row({cost.name + (i == choice.backend ? " *" : ""), fmt::format("{:.2f}", cost.call_ns / 1e3),
                   fmt::format("{:.0f}", cost.submit_copy_ns), fmt::format("{:.0f}", cost.device_copy_ns),
                   fmt::format("{:.1f}", cost.bytes_per_ns), fmt::format("{}", own->batch),
                   fmt::format("{:.2f}", (own->outcome.stalled_ns + own->outcome.slowed_ns) / 1e6),
                   fmt::format("{:.0f} %", 100 * own->outcome.overlap())});
  }
  std::cout << table.text(report::terminal_style(STDOUT_FILENO)) << "\n" << choice.reason << "\n";
  for (const std::string& absent : measured.absent) std::cout << "not measured: " << absent << "\n";
}

std::string json(const Measured& measured, const policy::SwapChoice& choice) {
  nlohmann::json out;
  for (const policy::SwapBackendCost& cost : measured.costs)
    out["backends"].push_back({{"name", cost.name},
                               {"call_ns", cost.call_ns},
                               {"submit_copy_ns", cost.submit_copy_ns},
                               {"device_copy_ns", cost.device_copy_ns},
                               {"bytes_per_ns", cost.bytes_per_ns},
                               {"batch_max", cost.batch_max},
                               {"compute_share", cost.compute_share}});
  out["not_measured"] = measured.absent;
  out["choice"] = {{"backend", measured.costs[choice.backend].name},
                   {"batch", choice.batch},
                   {"total_ns", choice.outcome.total_ns},
                   {"stalled_ns", choice.outcome.stalled_ns},
                   {"slowed_ns", choice.outcome.slowed_ns},
                   {"hidden_ratio", choice.outcome.overlap()},
                   {"reason", choice.reason}};
  return out.dump(2);
}

base::Status swap_in_command(const SwapInOptions& options) {
  const auto profile = config::load_profile(options.profile, find_profiles_dir(options.profiles_dir));
  if (!profile) return tl::unexpected<base::Error>(profile.error());
  const auto layers = layers_of(*profile, options);
  if (layers.empty())
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("profile '{}' has no [kv] layer_bytes: there is nothing to swap in layer by layer",
                    options.profile),
        "--profile");
  const auto measured = measure_all(options);
  if (!measured) return tl::unexpected<base::Error>(measured.error());
  const auto choice = policy::choose_swap(measured->costs, layers);
  if (!choice) return tl::unexpected<base::Error>(choice.error());
  if (options.as_json)
    std::cout << json(*measured, *choice) << "\n";
  else
    print(*measured, *choice, layers);
  return {};
}

}  // namespace

void add_pool_swap_in(CLI::App& pool) {
  auto options = std::make_shared<SwapInOptions>();
  CLI::App* command = pool.add_subcommand(
      "swap-in",
      "measures the ways of moving a hit from host into device memory, and chooses one\n\n"
      "  trimtab pool swap-in                                # a 64K-token hit of V4.1, behind 20 ms of "
      "computing\n"
      "  trimtab pool swap-in --blocks 64 --pass-ms 8        # a shorter hit and pass\n\n"
      "Needs a GPU for the copy engines and the gather kernel; without one it measures memcpy.\n"
      "docs/policies/swap_in.md says how it chooses.");
  command->add_option("--profile", options->profile, "model profile: its layers' bytes per block")
      ->capture_default_str();
  command->add_option("--profiles-dir", options->profiles_dir, "directory of the model profiles");
  command->add_option("--blocks", options->blocks, "blocks of 128 tokens in the hit")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--pass-ms", options->pass_ms, "the forward pass that hides the copies, milliseconds")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--device", options->device, "CUDA device")->check(CLI::Range(0, 127));
  command->add_flag("--json", options->as_json, "as JSON");
  command->callback([options] { finish(swap_in_command(*options)); });
}

}  // namespace trimtab::apps
