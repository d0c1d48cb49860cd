#include <fmt/format.h>
#include <sys/random.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/signals.h"
#include "apps/size_value.h"
#include "kv_remote/net/target_server.h"
#include "kv_target/file/log_file.h"
#include "kv_target/file_target.h"
#include "kv_target/memory_target.h"
#include "obs/log.h"
#include "obs/registry.h"

namespace trimtab::apps {
namespace {

struct KvTargetOptions {
  std::string directory, listen = "127.0.0.1:7701", metrics_file;
  bool memory = false;
  std::uint64_t capacity_bytes = 0, shard_bytes = 16ULL << 20;
  std::uint64_t credit_bytes = 32ULL << 20, memory_limit_bytes = 2ULL << 30;
  std::uint32_t credit_requests = 512;
};

std::uint64_t fresh_epoch() {
  std::uint64_t epoch = 0;
  (void)::getrandom(&epoch, sizeof epoch, 0);
  return epoch | 1;
}

base::Result<std::unique_ptr<kv_target::Target>> open_target(const KvTargetOptions& options,
                                                             std::uint64_t epoch) {
  if (options.memory == !options.directory.empty()) {
    return base::fail(
        base::Code::kInvalidArgument,
        "say what to serve, one of both: --directory D keeps shards in files there, --memory in "
        "this process only",
        "kv-target");
  }
  if (options.memory) {
    return std::make_unique<kv_target::MemoryTarget>(
        kv_target::MemoryTarget::Options{options.capacity_bytes, options.shard_bytes, epoch});
  }
  kv_target::FileTarget::Options file;
  file.directory = options.directory;
  file.capacity_bytes = options.capacity_bytes;
  file.shard_bytes = options.shard_bytes;
  // One that a loader had before may have smaller files.
  if (const auto made = kv_target::file::layout_of(options.directory)) file.layout = *made;
  auto target = kv_target::FileTarget::open(std::move(file));
  if (!target) return tl::unexpected<base::Error>(target.error());
  spdlog::info("{}", (*target)->describe());
  return std::move(*target);
}

void count(obs::Registry& registry, const kv_remote::ServerStats& stats, kv_target::Target& target) {
  const auto set = [&registry](std::string_view name, std::uint64_t value, const base::Labels& labels = {}) {
    registry.set(name, static_cast<double>(value), labels);
  };
  set("trimtab_kv_target_requests", stats.reads, {{"verb", "read"}});
  set("trimtab_kv_target_requests", stats.writes, {{"verb", "write"}});
  set("trimtab_kv_target_requests", stats.erases, {{"verb", "erase"}});
  set("trimtab_kv_target_requests", stats.questions, {{"verb", "question"}});
  set("trimtab_kv_target_requests_not_done", stats.failed);
  set("trimtab_kv_target_received_bytes", stats.bytes_received);
  set("trimtab_kv_target_sent_bytes", stats.bytes_sent);
  set("trimtab_kv_target_connections", stats.open);
  set("trimtab_kv_target_connections_accepted", stats.accepted);
  set("trimtab_kv_target_connections_refused", stats.refused);
  set("trimtab_kv_target_broken_frames", stats.broken_frames);
  set("trimtab_kv_target_credit_overdrawn", stats.credit_overdrawn);
  set("trimtab_kv_target_zero_copy_sends", stats.sends.zero_copy_sends);
  set("trimtab_kv_target_zero_copy_copied", stats.sends.zero_copy_copied);
  set("trimtab_kv_target_trouble", target.trouble().empty() ? 0 : 1);
  if (const auto space = target.space()) {
    set("trimtab_kv_target_capacity_bytes", space->capacity_bytes);
    set("trimtab_kv_target_used_bytes", space->used_bytes);
    set("trimtab_kv_target_shards", space->shards);
    set("trimtab_kv_target_caller_written_bytes", space->caller_bytes_written);
    set("trimtab_kv_target_device_written_bytes", space->device_bytes_written);
  }
}

/// A new file and a rename, so that whoever collects the figures never reads half of them.
void write_metrics(const std::string& path, const obs::Registry& registry) {
  const std::string fresh = path + ".new";
  std::ofstream(fresh) << registry.prometheus_text();
  if (std::rename(fresh.c_str(), path.c_str()) != 0)
    spdlog::warn("metrics cannot be written to {}: check the directory and its permissions", path);
}

/// Says once why the directory takes no more, and when it does again: clients are told full or failed only.
void tell_trouble(kv_target::Target& target, std::string& said) {
  const std::string trouble = target.trouble();
  if (trouble == said) return;
  if (trouble.empty())
    spdlog::info("writes succeed again");
  else
    spdlog::warn("writes are refused: {}", trouble);
  said = trouble;
}

base::Status serve(const KvTargetOptions& options) {
  obs::start_log("kv-target");
  const std::atomic<bool>& stop = stop_on_signals();
  const std::uint64_t epoch = fresh_epoch();
  auto target = open_target(options, epoch);
  if (!target) return tl::unexpected<base::Error>(target.error());
  kv_remote::ServerOptions server_options;
  server_options.listen = options.listen;
  server_options.credit_bytes = options.credit_bytes;
  server_options.credit_requests = options.credit_requests;
  server_options.memory_bytes = options.memory_limit_bytes;
  server_options.epoch = epoch;
  auto server = kv_remote::TargetServer::listen(**target, server_options);
  if (!server) return tl::unexpected<base::Error>(server.error());
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  std::cout << fmt::format("trimtab kv-target: ready at {}:{}\n", host, (*server)->port()) << std::flush;

  obs::Registry registry;
  base::Nanos write_at{0}, tell_at{0};
  std::string said;
  while (!stop) {
    (*server)->step(base::Nanos{500'000'000});
    if (kv_remote::steady_now() >= tell_at) {
      tell_at = kv_remote::steady_now() + base::Nanos{1'000'000'000};
      tell_trouble(**target, said);
    }
    if (options.metrics_file.empty() || kv_remote::steady_now() < write_at) continue;
    write_at = kv_remote::steady_now() + base::Nanos{5'000'000'000};
    count(registry, (*server)->stats(), **target);
    write_metrics(options.metrics_file, registry);
  }
  (*server)->serve(stop);  // stopping already: what is under way is answered, then all is closed
  const auto stats = (*server)->stats();
  spdlog::info("stopped: {} reads, {} writes, {} erases over {} connections", stats.reads, stats.writes,
               stats.erases, stats.accepted);
  return {};
}

}  // namespace

void add_kv_target(CLI::App& app) {
  auto options = std::make_shared<KvTargetOptions>();
  CLI::App* command = app.add_subcommand(
      "kv-target",
      "serves a place for shards of KV blocks to other machines over TCP\n\n"
      "  trimtab kv-target --directory /nvme0/kv --listen 10.0.0.7:7701 --capacity 3T\n"
      "  trimtab kv-target --memory --listen 10.0.0.7:7701 --capacity 100G     # in this process's memory\n\n"
      "Prints one line when it is ready. Every frame carries checksums; there is no authentication and no\n"
      "encryption: listen on the network of the pool only. SIGTERM stops it in order. docs/kv.md, \"Targets\n"
      "elsewhere\", tells the protocol.");
  command->add_option("--directory", options->directory,
                      "keep shards in files there, found again after any crash; made when missing");
  command->add_flag("--memory", options->memory, "keep shards in this process; nothing survives it");
  command->add_option("--listen", options->listen, "host:port to serve at; port 0 takes a free one")
      ->capture_default_str();
  command->add_option("--capacity", options->capacity_bytes, "room for shards, as 512M, 100G or 3T")
      ->required()
      ->transform(size_value());
  command->add_option("--shard-bytes", options->shard_bytes, "the largest shard that is taken")
      ->transform(size_value())
      ->capture_default_str();
  command
      ->add_option("--credit-bytes", options->credit_bytes,
                   "what one connection may have under way; at least a shard")
      ->transform(size_value())
      ->capture_default_str();
  command->add_option("--credit-requests", options->credit_requests, "and how many requests")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--memory-limit", options->memory_limit_bytes,
                   "the credits of all connections together; who does not fit is refused")
      ->transform(size_value())
      ->capture_default_str();
  command->add_option("--metrics-file", options->metrics_file,
                      "write Prometheus text there every 5 s, for a textfile collector");
  command->callback([options] { finish(serve(*options)); });
}

}  // namespace trimtab::apps
