#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agents/prefix_source.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/metrics.h"
#include "cluster/backend.h"
#include "model/cluster_config.h"
#include "model/profile.h"

namespace trimtab::agents {

struct ClusterBackendOptions {
  model::ClusterConfig config;
  model::Profile profile;
  std::string runtime_dir;           // control.sock is bound here
  std::string shm_dir = "/dev/shm";  // embeddings: <shm_dir>/emb-<request>-<image>-<try>
  std::string log_dir;               // decision log; empty: none on disk
  std::uint64_t log_file_bytes_max = 64UL << 20;
  double log_sample_ratio = 1.0;
  /// Of ipc::next_life, by which requests are numbered; empty: <runtime_dir>/gateway.lives.
  std::string lives_path;
  std::string tokenizer_fingerprint;            // part of every block key
  std::string kv_format = "f16";                // likewise
  std::uint64_t model_fingerprint = 0;          // 0: that of the first engine that says hello
  std::size_t journeys_bytes_max = 64UL << 20;  // of the newest requests, for GET /debug/requests/ID
  /// Warnings for people: lost ranks, refused hellos, a log that cannot be written. Called on the one thread.
  std::function<void(const std::string&)> warn;
};

/// The host of the cluster machine: owns the control socket, the requests' tokens and images, their sinks,
/// and time; turns the engines' messages into events and the machine's actions into messages. One thread,
/// that of `context`; every member is called there.
///
///   gateway -> submit -> Cluster::step -> actions -> agents -> engines -> frames -> events -> step ...
class ClusterBackend final : public cluster::Backend {
 public:
  /// Binds the control socket and opens the log. `prefixes`: where hit lengths come from; null: the pool at
  /// <runtime_dir>/kv.sock. Errors: kIo (also when the number of this life cannot be kept), kInvalidArgument
  /// (socket path too long).
  static base::Result<std::unique_ptr<ClusterBackend>> start(
      ClusterBackendOptions options, boost::asio::io_context& context, const base::Clock& clock,
      base::Metrics& metrics, std::unique_ptr<PrefixSource> prefixes = nullptr);
  ~ClusterBackend() override;

  model::RequestId submit(cluster::Submission submission, std::shared_ptr<cluster::Sink> sink) override;
  void cancel(model::RequestId id) override;
  std::optional<std::string> journey(const std::string& name) override;
  std::string status() override;
  bool ready() override;

  /// The gateway is stopping: fails what is in flight (kUnavailable), sends Shutdown to every engine, closes
  /// the socket once that is written, and flushes the log. Later submissions are refused.
  void shutdown();

 private:
  struct Impl;
  explicit ClusterBackend(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trimtab::agents
