#include "agents/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "agents/status_json.h"
#include "io/explain.h"
#include "ipc/life_counter.h"
#include "kv/key_chain.h"

namespace trimtab::agents {

using base::Nanos;
using base::operator""_s;

namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr Nanos kPoolSampleInterval{2'000'000'000};
/// From the start on; a pool that is not there by then is computed around.
constexpr Nanos kPoolPatience{3'000'000'000};

/// Requests are numbered from the number of this life on, so that engines that outlive it, and the decision
/// log, never see a number again; a clock would not do, since clocks are set back. 69 billion requests a
/// life, and 130,000 lives before a number is more than readers of JSON keep in a double.
constexpr std::uint32_t kLifeShift = 36;

std::int64_t unix_now_ns() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
}

/// How many bytes a block has and each layer of it: element types of other sizes, and other layers, show in
/// it.
std::string layout_text(const model::KvLayout& kv) {
  std::string text = fmt::format(" block {}", kv.block_bytes.value);
  for (const base::Bytes layer : kv.layer_bytes) text += fmt::format(" {}", layer.value);
  return text;
}

}  // namespace

Host::Host(ClusterBackendOptions options, boost::asio::io_context& context, const base::Clock& clock,
           base::Metrics& metrics, std::unique_ptr<PrefixSource> prefixes,
           std::unique_ptr<cluster::Cluster> machine, std::optional<io::DecisionLog> log)
    : options_(std::move(options)),
      context_(context),
      clock_(clock),
      began_(clock.now()),
      prefixes_(std::move(prefixes)),
      machine_(std::move(machine)),
      pulls_(options_.config, options_.profile),
      log_(std::move(log)),
      registry_(metrics),
      metrics_(metrics),
      journeys_(options_.journeys_bytes_max),
      server_(
          context, ControlServerConfig{},
          [this](ConnectionId from, const ipc::Frame& frame) { on_frame(from, frame); },
          [this](ConnectionId from, const std::string& why) { on_closed(from, why); }),
      model_fingerprint_(options_.model_fingerprint),
      timer_(context),
      ticker_(context) {
  const auto add = [this](model::Role role, std::uint32_t engines, std::uint32_t ranks) {
    for (std::uint32_t i = 0; i < engines; ++i) {
      agents_[{role, model::EngineId{i}}] = std::make_unique<ReferenceAgent>(
          role, model::EngineId{i}, ranks, server_, [this](Report report) { post(std::move(report)); });
    }
  };
  const model::ClusterConfig& config = options_.config;
  // Of two runs of one model whose blocks are laid out differently neither takes the other's (sglang#33268).
  options_.kv_format += layout_text(options_.profile.kv);
  if (options_.profile.kv.window_tokens > 0) {
    const bool exact = config.window_state.mode == "exact";
    // What was computed without a state may have drifted: it is never taken for the KV of an exact pool.
    options_.kv_format += exact ? " window exact" : " window approximate";
    states_.emplace(options_.profile.kv, exact ? kv::WindowMode::kExact : kv::WindowMode::kApproximate,
                    [this, alive = alive_](std::function<void()> task) {
                      boost::asio::post(context_, [alive, task = std::move(task)] {
                        if (*alive) task();
                      });
                    });
    if (!exact && config.window_state.audits_per_1000 > 0)
      audits_.emplace(config.window_state.audits_per_1000, registry_);
  }
  add(model::Role::kPrefill, config.prefill.engines, config.prefill.ranks);
  add(model::Role::kDecode, config.decode.groups, config.decode.ranks);
  add(model::Role::kVision, config.vision.machines, config.vision.encoders);
}

Host::~Host() {
  *alive_ = false;
  for (auto& [id, request] : requests_) {
    for (const ImageState& image : request.images) unlink_segment(image.segment);
  }
}

base::Status Host::listen() {
  if (log_) {
    // The journeys of the last run stay within reach of GET /debug/requests/ID.
    const auto scan = io::read_log(options_.log_dir, [this](const io::Entry& e) { journeys_.append(e); });
    if (!scan) warn("the decision log of the last run cannot be read: " + scan.error().message);
  }
  TRIMTAB_TRY(server_.listen(options_.runtime_dir + "/control.sock"));
  const auto life = ipc::next_life(options_.lives_path.empty() ? options_.runtime_dir + "/gateway.lives"
                                                               : options_.lives_path);
  if (!life) return tl::unexpected(life.error());
  next_request_ = *life << kLifeShift;
  post_event(cluster::Timer{});
  tick();
  return {};
}

void Host::tick() {
  const cluster::ClusterStatus status = machine_->status();
  metrics_.sample(status, requests_.size(), encodings_.size(), log_ ? log_->dropped_bytes() : 0);
  run_audits(status);
  if (shadow_) shadow_->sample(registry_);
  sample_pool();
  if (states_) states_->refresh();
  if (log_) {
    const Nanos now = clock_.now();
    const auto flushed = log_->flush();
    if (!flushed && (!log_warned_at_ || now - *log_warned_at_ > 60_s)) {
      log_warned_at_ = now;
      warn(flushed.error().message + "; serving goes on, its decisions are not logged");
    }
  }
  ticker_.expires_after(kTick);
  ticker_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive && !stopping_) tick();
  });
}

bool Host::ready() {
  if (!machine_->ready()) return false;
  pool_awaited_ = pool_awaited_ || clock_.now() - began_ >= kPoolPatience || prefixes_->stats().has_value();
  return pool_awaited_;
}

void Host::sample_pool() {
  // A question to another process, on the serving thread: not with every tick.
  if (pool_sampled_at_ && clock_.now() - *pool_sampled_at_ < kPoolSampleInterval) return;
  pool_sampled_at_ = clock_.now();
  metrics_.sample(prefixes_->stats());
}

void Host::warn(const std::string& message) {
  if (options_.warn) options_.warn(message);
}

void Host::log(io::Entry entry) {
  if (log_) log_->append(entry);
  journeys_.append(entry);
}

RequestState* Host::find(model::RequestId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

void Host::forget(model::RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  for (const ImageState& image : found->second.images) unlink_segment(image.segment);
  abandon_hit(found->second);
  requests_.erase(found);
}

void Host::refuse(std::shared_ptr<cluster::Sink> sink, base::Error error, std::optional<Nanos> retry_after) {
  boost::asio::post(context_, [sink = std::move(sink), error = std::move(error), retry_after] {
    sink->on_failed(error, retry_after);
  });
}

model::RequestId Host::submit(cluster::Submission submission, std::shared_ptr<cluster::Sink> sink) {
  const model::RequestId id{++next_request_};
  if (stopping_) {
    refuse(std::move(sink), {base::Code::kUnavailable, "the gateway is stopping", "agents"}, std::nullopt);
    return id;
  }
  if (model_fingerprint_ == 0) {
    refuse(std::move(sink),
           {base::Code::kUnavailable, "no engine has connected yet: the cluster is starting", "agents"}, 1_s);
    return id;
  }
  RequestState request;
  request.id = id;
  request.name = submission.name;
  request.sink = std::move(sink);
  request.tokens = std::move(submission.tokens);
  request.prompt_tokens = static_cast<std::uint32_t>(request.tokens.size());
  request.sampling = submission.sampling;
  request.stop_tokens = std::move(submission.stop_tokens);
  request.submitted_at = clock_.now();
  request.audited = audits_ && audits_->chosen(id);
  for (cluster::PromptImage& image : submission.images) {
    request.spans.push_back(image.span);
    request.images.push_back({std::move(image), 0, {}, 0, 0});
  }
  request.key_root = kv::root_key({std::to_string(model_fingerprint_), options_.kv_format,
                                   options_.tokenizer_fingerprint, std::string(), submission.tenant});
  cluster::Submitted event;
  event.id = id;
  event.prompt = base::TokenCount{request.prompt_tokens};
  event.output_limit = base::TokenCount{submission.output_limit};
  event.images = request.spans;
  event.timeout = submission.timeout.value_or(base::kForever);
  log({io::NameEntry{id, request.submitted_at, unix_now_ns(), request.name}});
  requests_.emplace(id, std::move(request));
  // From the event loop: a sink is never called before its caller knows the request's id.
  Report report;
  report.event = std::move(event);
  pending_.push_back(std::move(report));
  schedule_run();
  return id;
}

void Host::cancel(model::RequestId id) {
  RequestState* request = find(id);
  if (request == nullptr) return;
  metrics_.on_end(*request, "cancelled");
  forget(id);
  Report report;
  report.event = cluster::Cancelled{id};
  pending_.push_back(std::move(report));
  run();
}

void Host::post(Report report) {
  pending_.push_back(std::move(report));
  run();
}

void Host::post_event(cluster::Event event) {
  Report report;
  report.event = std::move(event);
  post(std::move(report));
}

void Host::schedule_run() {
  if (running_ || std::exchange(scheduled_, true)) return;
  boost::asio::post(context_, [this, alive = alive_] {
    if (!*alive) return;
    scheduled_ = false;
    run();
  });
}

void Host::run() {
  if (running_) return;  // a sink called back in the middle of a step: its turn comes
  running_ = true;
  while (!pending_.empty()) {
    const Report report = std::move(pending_.front());
    pending_.pop_front();
    step(report);
  }
  running_ = false;
}

void Host::step(const Report& report) {
  now_ = clock_.now();
  if (!prepare(report)) return;
  actions_.clear();
  machine_->step(report.event, now_, actions_);
  pulls_.observe(report.event);
  for (const cluster::Action& action : actions_) pulls_.observe(action);
  // Sinks append to pending_ only, so actions_ stands still here.
  for (const cluster::Action& action : actions_) perform(action, report);
  std::vector<cluster::Event> pulls;
  pulls_.take_pulls(pulls);
  for (cluster::Event& pull : pulls) post_event(std::move(pull));
}

void Host::set_timer(Nanos at) {
  if (at == base::kForever) {
    timer_.cancel();
    return;
  }
  const Nanos wait = std::max(at - clock_.now(), Nanos{0});
  timer_.expires_after(std::chrono::nanoseconds(wait.value));
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) post_event(cluster::Timer{});
  });
}

std::optional<std::string> Host::journey(const std::string& name) const {
  const auto request = journeys_.find(name);
  if (!request) return std::nullopt;
  return io::explain_json(*request);
}

std::string Host::status() {
  StatusParts parts{machine_->status(), {}, metrics_.drift(), prefixes_->stats(), {}, {}, 0, 0, 0, {}};
  for (const auto& [key, agent] : agents_) parts.members[key] = agent->members();
  parts.hits = hits_.totals();
  parts.swap_in = metrics_.swap_in();
  if (states_) parts.states = &*states_;
  if (audits_) parts.audits = &*audits_;
  parts.shadow = shadow_ ? &*shadow_ : nullptr;
  parts.requests = requests_.size();
  parts.encodings = encodings_.size();
  parts.ends = obs::read_process_ends(options_.runtime_dir);
  parts.now = clock_.now();
  parts.log_bytes_dropped = log_ ? log_->dropped_bytes() : 0;
  for (const auto& [id, request] : requests_) {
    parts.oldest.push_back(
        {request.name, id, clock_.now() - request.submitted_at, request.prompt_tokens, request.generated()});
    if (parts.oldest.size() == kStatusRequestsMax) break;
  }
  return status_json(parts);
}

void Host::shutdown() {
  if (std::exchange(stopping_, true)) return;
  auto requests = std::move(requests_);
  requests_.clear();
  for (auto& [id, request] : requests) {
    for (const ImageState& image : request.images) unlink_segment(image.segment);
    abandon_hit(request);
    metrics_.on_end(request, "unavailable");
    request.sink->on_failed({base::Code::kUnavailable, "the gateway is stopping", "agents"}, std::nullopt);
  }
  for (const auto& [key, agent] : agents_) agent->shutdown();
  server_.stop();
  timer_.cancel();
  ticker_.cancel();
  if (log_) (void)log_->flush();  // a disk that refuses has been warned about
}

}  // namespace trimtab::agents
