#include "agents/cluster_backend.h"

#include <utility>

#include "agents/host.h"
#include "queue/assigned_queue.h"

namespace trimtab::agents {

struct ClusterBackend::Impl {
  Host host;
  template <class... A>
  explicit Impl(A&&... arguments) : host(std::forward<A>(arguments)...) {}
};

ClusterBackend::ClusterBackend(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ClusterBackend::~ClusterBackend() = default;

base::Result<std::unique_ptr<ClusterBackend>> ClusterBackend::start(ClusterBackendOptions options,
                                                                    boost::asio::io_context& context,
                                                                    const base::Clock& clock,
                                                                    base::Metrics& metrics,
                                                                    std::unique_ptr<PrefixSource> prefixes) {
  auto queue = queue::make_queue(options.config.prefill, options.config.seed);
  if (!queue) return tl::unexpected(queue.error());
  auto machine = cluster::Cluster::make(options.config, options.profile, std::move(*queue));
  if (!machine) return tl::unexpected(machine.error());
  auto shadow = ShadowDecode::make(options.config);
  if (!shadow) return tl::unexpected(shadow.error());
  std::optional<io::DecisionLog> log;
  if (!options.log_dir.empty()) {
    auto opened =
        io::DecisionLog::open({options.log_dir, options.log_file_bytes_max, options.log_sample_ratio});
    if (!opened) return tl::unexpected(opened.error());
    log.emplace(std::move(*opened));
  }
  if (prefixes == nullptr) {
    prefixes = std::make_unique<PoolPrefixSource>(options.runtime_dir + "/kv.sock", clock,
                                                  base::Nanos{options.config.pool.answer_ms * 1'000'000});
  }
  auto impl = std::make_unique<Impl>(std::move(options), context, clock, metrics, std::move(prefixes),
                                     std::move(*machine), std::move(log));
  if (*shadow) impl->host.set_shadow(std::move(**shadow));
  TRIMTAB_TRY(impl->host.listen());
  return std::unique_ptr<ClusterBackend>(new ClusterBackend(std::move(impl)));
}

model::RequestId ClusterBackend::submit(cluster::Submission submission, std::shared_ptr<cluster::Sink> sink) {
  return impl_->host.submit(std::move(submission), std::move(sink));
}
void ClusterBackend::cancel(model::RequestId id) { impl_->host.cancel(id); }
std::optional<std::string> ClusterBackend::journey(const std::string& name) {
  return impl_->host.journey(name);
}
std::string ClusterBackend::status() { return impl_->host.status(); }
bool ClusterBackend::ready() { return impl_->host.ready(); }
void ClusterBackend::shutdown() { impl_->host.shutdown(); }

}  // namespace trimtab::agents
