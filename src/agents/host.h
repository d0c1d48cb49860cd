#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agents/cluster_backend.h"
#include "agents/control_server.h"
#include "agents/drift_audits.h"
#include "agents/encodings.h"
#include "agents/journeys.h"
#include "agents/reference_agent.h"
#include "agents/request_state.h"
#include "agents/serving_metrics.h"
#include "agents/shadow_decode.h"
#include "agents/window_states.h"
#include "cluster/cluster.h"
#include "cluster/pull_agents.h"
#include "io/decision_log.h"
#include "kv/hit_counters.h"

namespace trimtab::agents {

/// What stands behind ClusterBackend. The one loop: a report is stepped, its actions are done in order, and
/// what they cause (answers of the pool, pulls) waits in `pending_` for its own step. Sinks may call back at
/// any moment; they only ever append to `pending_`.
class Host {
 public:
  Host(ClusterBackendOptions options, boost::asio::io_context& context, const base::Clock& clock,
       base::Metrics& metrics, std::unique_ptr<PrefixSource> prefixes,
       std::unique_ptr<cluster::Cluster> machine, std::optional<io::DecisionLog> log);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// Before listen: a policy that decides beside the live one.
  void set_shadow(ShadowDecode shadow) { shadow_.emplace(std::move(shadow)); }
  base::Status listen();
  model::RequestId submit(cluster::Submission submission, std::shared_ptr<cluster::Sink> sink);
  void cancel(model::RequestId id);
  std::optional<std::string> journey(const std::string& name) const;
  std::string status();
  /// The engines are there, and so is the pool, or it was waited for long enough: what is asked before would
  /// be computed anew although the pool has it.
  bool ready();
  void shutdown();

 private:
  // host.cpp: the loop.
  void post(Report report);
  void post_event(cluster::Event event);
  void run();
  void schedule_run();
  void step(const Report& report);
  void set_timer(base::Nanos at);
  void tick();
  void sample_pool();
  void log(io::Entry entry);
  void warn(const std::string& message);
  RequestState* find(model::RequestId id);
  void refuse(std::shared_ptr<cluster::Sink> sink, base::Error error, std::optional<base::Nanos> retry_after);
  void forget(model::RequestId id);

  // host_frames.cpp: connections, and what a report means to the host before it is stepped.
  void on_frame(ConnectionId connection, const ipc::Frame& frame);
  void on_closed(ConnectionId connection, const std::string& why);
  base::Status welcome(ConnectionId connection, const ipc::Frame& frame);
  base::Status check(const wire::Hello& hello) const;
  base::Status welcome_state(ConnectionId connection, const ipc::Frame& frame);
  void part(ConnectionId connection, const std::string& why);
  bool prepare(const Report& report);
  bool keep_image(const Report& report, const cluster::Encoded& event);
  // host_hits.cpp: what became of what the pool promised.
  void settle_hit(const Report& report, const cluster::PrefillDone& done);
  void settle_states(RequestState& request, const Report& report);
  void abandon_hit(RequestState& request);
  void count_swap_in(const Report& report, model::RequestId id);
  // host_audits.cpp: approximate hits are computed again.
  void audit_hit(const RequestState& request, const Report& report);
  void run_audits(const cluster::ClusterStatus& status);
  void abort_audit(const DriftAudits::Run& run);
  /// The report was an audit's, and is nobody else's.
  bool take_audit(const Report& report);
  ReferenceAgent& agent(model::Role role, model::EngineId engine);

  // host_actions.cpp: what the machine asks for.
  void perform(const cluster::Action& action, const Report& report);
  void on(const cluster::Match& action, const Report& report);
  void on(const cluster::Accept& action, const Report& report);
  // What a grant promises is the pulling side's account (PullAgents); nothing is sent yet.
  void on(const cluster::Grant&, const Report&) {}
  void on(const cluster::Revoke&, const Report&) {}
  void on(const cluster::StartPrefill& action, const Report& report);
  void on(const cluster::StartEncode& action, const Report& report);
  void on(const cluster::SendEmbeddings& action, const Report& report);
  void on(const cluster::DropEmbeddings& action, const Report& report);
  void on(const cluster::Reserve& action, const Report& report);
  void on(const cluster::SendTarget& action, const Report& report);
  void on(const cluster::StartDecode& action, const Report& report);
  void on(const cluster::Abort& action, const Report& report);
  void on(const cluster::Deliver& action, const Report& report);
  void on(const cluster::Finish& action, const Report& report);
  void on(const cluster::Fail& action, const Report& report);
  void on(const cluster::Log& action, const Report& report);
  void on(const cluster::SetTimer& action, const Report& report);
  void extend_keys(RequestState& request);

  ClusterBackendOptions options_;
  boost::asio::io_context& context_;
  const base::Clock& clock_;
  const base::Nanos began_;
  bool pool_awaited_ = false;
  std::unique_ptr<PrefixSource> prefixes_;
  std::unique_ptr<cluster::Cluster> machine_;
  cluster::PullAgents pulls_;
  std::optional<io::DecisionLog> log_;
  base::Metrics& registry_;
  ServingMetrics metrics_;
  kv::HitCounters hits_;
  std::optional<ShadowDecode> shadow_;
  Journeys journeys_;
  ControlServer server_;
  std::map<std::pair<model::Role, model::EngineId>, std::unique_ptr<ReferenceAgent>> agents_;
  std::map<ConnectionId, cluster::Place> peers_;
  std::optional<WindowStates> states_;  // of models with a window
  std::map<ConnectionId, std::uint32_t> state_peers_;
  std::optional<DriftAudits> audits_;  // of models with a window, in `approximate`
  std::uint64_t model_fingerprint_ = 0;

  std::map<model::RequestId, RequestState> requests_;
  Encodings encodings_;
  std::uint64_t next_request_ = 0;

  std::deque<Report> pending_;
  std::vector<cluster::Action> actions_;
  base::Nanos now_;  // of the step that is being done
  bool running_ = false, scheduled_ = false, stopping_ = false;
  boost::asio::steady_timer timer_, ticker_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::optional<base::Nanos> log_warned_at_, pool_sampled_at_;
};

}  // namespace trimtab::agents
