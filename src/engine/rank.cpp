#include "engine/rank.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>

#include "engine/decode_rank.h"
#include "engine/group.h"
#include "engine/group_exchange.h"
#include "engine/inbox.h"
#include "engine/prefill_rank.h"
#include "kv_state/state_host.h"
#include "obs/log.h"

namespace trimtab::engine {

namespace {

using base::Code;

constexpr base::Nanos kPatience{60'000'000'000};  // for peers and the control process to come

std::atomic<Group*> signalled_group{nullptr};
std::atomic<bool> terminated{false};

void on_terminate(int) {
  terminated.store(true);
  Group* group = signalled_group.load();
  if (group == nullptr) _exit(0);  // still waiting for its peers: there is nothing to finish
  group->ring();
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_terminate;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

class LinkOutbox final : public Outbox {
 public:
  explicit LinkOutbox(ControlLink& link) : link_(link) {}
  void send_frame(const ipc::Frame& frame) override { link_.send_frame(frame); }

 private:
  ControlLink& link_;
};

/// One rank, assembled; `serve` runs until the group parts.
class Rank {
 public:
  explicit Rank(const RankOptions& options) : options_(options) {}
  ~Rank() {
    signalled_group.store(nullptr);
    if (!arena_.path().empty()) ipc::Segment::remove(arena_.path());
    if (state_) ipc::Segment::remove(state_->arena.path());
  }

  base::Status start();
  base::Status serve();

 private:
  bool prefill() const { return options_.role == model::Role::kPrefill; }
  std::uint32_t ranks() const {
    return prefill() ? options_.config.prefill.ranks : options_.config.decode.ranks;
  }
  base::Status make_arena();
  base::Status make_state();
  base::Status join_group();
  base::Status dial_control();
  base::Status take_events();
  /// Tells the control process, once, when the last of everything has left.
  void report_when_idle();
  base::Status step(std::span<const Group::Values> proposals);

  const RankOptions& options_;
  std::optional<LlamaWeights> weights_;
  KvArena arena_;
  std::optional<Group> group_;
  std::unique_ptr<ExpertRunner> runner_;
  std::unique_ptr<LocalExchange> local_;
  std::unique_ptr<GroupExchange> shared_;
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<ControlLink> link_;
  std::unique_ptr<LinkOutbox> outbox_;
  std::unique_ptr<SharedMemoryTransport> transport_;
  std::unique_ptr<BlockMover> mover_;
  std::unique_ptr<RankState> state_;  // of models with sliding-window layers
  std::unique_ptr<RankRole> role_;
  bool stopping_ = false;
  bool idle_ = true;
  base::Status loss_;  // why this rank stops, when nobody asked it to
};

base::Status Rank::start() {
  if (options_.config.engine.threads != 1) {
    return base::fail(Code::kUnsupported,
                      fmt::format("[engine] threads = {}: a rank computes on one thread; raise ranks instead",
                                  options_.config.engine.threads),
                      "engine");
  }
  auto kernels = best_kernels();
  if (!kernels) return tl::unexpected(kernels.error());
  auto weights = LlamaWeights::load(options_.model_path);
  if (!weights) return tl::unexpected(weights.error());
  TRIMTAB_TRY(check_window(weights->shape(), options_.profile));
  weights_.emplace(std::move(*weights));
  auto partition = ExpertPartition::make(weights_->shape().ffn, options_.config.engine.ffn_experts);
  if (!partition) return tl::unexpected(partition.error());
  runner_ = std::make_unique<ExpertRunner>(**kernels, weights_->shape(), *partition);
  TRIMTAB_TRY(make_arena());
  TRIMTAB_TRY(join_group());
  FfnExchange* exchange = nullptr;
  if (ranks() == 1) {
    local_ = std::make_unique<LocalExchange>(*runner_);
    exchange = local_.get();
  } else {
    shared_ = std::make_unique<GroupExchange>(*group_, *runner_);
    exchange = shared_.get();
  }
  forward_ = std::make_unique<Forward>(*weights_, **kernels, arena_, *exchange);
  return dial_control();
}

base::Status Rank::make_arena() {
  // The process id makes every incarnation's memory its own: a hand-over that was meant for a rank that died
  // never lands in its successor's blocks.
  const std::string name = fmt::format("kv-{}{}-{}.", prefill() ? 'p' : 'd', options_.engine, options_.rank);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.shm_dir, error)) {
    if (entry.path().filename().string().starts_with(name)) ipc::Segment::remove(entry.path().string());
  }
  if (error) {
    return base::fail(Code::kIo, fmt::format("cannot read {}: {}", options_.shm_dir, error.message()),
                      "engine");
  }
  const std::int64_t blocks =
      prefill() ? options_.config.prefill.kv_blocks : options_.config.decode.kv_blocks;
  auto arena = KvArena::create(fmt::format("{}/{}{}", options_.shm_dir, name, getpid()), weights_->shape(),
                               static_cast<std::uint32_t>(std::max<std::int64_t>(0, blocks)));
  if (!arena) return tl::unexpected(arena.error());
  arena_ = std::move(*arena);
  return {};
}

base::Status Rank::make_state() {
  const LlamaShape& shape = weights_->shape();
  if (shape.window_tokens == 0) return {};
  const auto most = static_cast<std::uint32_t>(options_.config.decode.max_running);
  auto slots = StateArena::create(StateArena::path_beside(arena_.path()), shape.ring(),
                                  kv::StateSlots::count_for(most));
  if (!slots) return tl::unexpected(slots.error());
  StateMoverOptions options;
  options.ring = shape.ring();
  options.machine = options_.engine % options_.config.window_state.machines;
  options.keep_socket = kv_state::keep_socket_path(options_.runtime_dir, options.machine);
  state_ = std::make_unique<RankState>(std::move(*slots), shape.ring(), std::move(options),
                                       [this](StateDone done) { inbox_->post(std::move(done)); });
  return {};
}

base::Status Rank::join_group() {
  GroupShape shape;
  shape.ranks = ranks();
  shape.experts = runner_->partition().experts();
  shape.hidden = static_cast<std::uint32_t>(weights_->shape().hidden);
  const std::string path =
      fmt::format("{}/group-{}{}", options_.shm_dir, prefill() ? 'p' : 'd', options_.engine);
  auto group = Group::join(path, options_.rank, shape, kPatience);
  if (!group) return tl::unexpected(group.error());
  group_.emplace(std::move(*group));
  signalled_group.store(&*group_);
  return {};
}

base::Status Rank::dial_control() {
  inbox_ = std::make_unique<Inbox>([this] { group_->ring(); });
  auto channel = ipc::Channel::connect(options_.runtime_dir + "/control.sock", kPatience);
  if (!channel) return tl::unexpected(channel.error());
  TRIMTAB_TRY(make_state());
  wire::Hello hello;
  hello.role = options_.role;
  hello.engine = options_.engine;
  hello.rank = options_.rank;
  hello.pid = getpid();
  hello.blocks_total = arena_.blocks();
  hello.model_fingerprint = weights_->fingerprint();
  hello.segment = arena_.path();
  TRIMTAB_TRY(channel->send(wire::to_frame(hello)));
  link_ = std::make_unique<ControlLink>(std::move(*channel), *inbox_);
  outbox_ = std::make_unique<LinkOutbox>(*link_);
  transport_ = std::make_unique<SharedMemoryTransport>(weights_->shape());
  const LlamaShape& shape = weights_->shape();
  BlockMover::Hooks hooks;
  hooks.done = [this](MoveDone done) { inbox_->post(std::move(done)); };
  hooks.handed = [this](const wire::PrefillDone& done) { outbox_->send(done); };
  hooks.coming = [this](HitComing coming) { inbox_->post(std::move(coming)); };
  hooks.more = [this] { inbox_->wake(); };
  BlockMoverOptions pool{options_.runtime_dir + "/kv.sock", std::nullopt};
  // Decode ranks read no hits.
  if (prefill()) pool.layout = HitLayout::make(options_.profile.kv, shape, arena_.block_bytes());
  mover_ = std::make_unique<BlockMover>(arena_, *transport_, std::move(pool), std::move(hooks));
  const std::int64_t context = std::min(shape.context_tokens, options_.profile.context_limit.value);
  const bool checksums = options_.config.engine.logits_checksums;
  if (prefill()) {
    const PrefillRankConfig config{policy::RankConfig::from(options_.config.prefill), context, checksums};
    policy::CostModel cost(options_.profile.cost, options_.config.prefill.quota_scope);
    role_ = std::make_unique<PrefillRank>(config, std::move(cost), shape, arena_, *mover_, *outbox_,
                                          state_.get());
  } else {
    role_ = std::make_unique<DecodeRank>(DecodeRankConfig{context, checksums}, shape, arena_, *mover_,
                                         *outbox_, state_.get());
  }
  spdlog::info("ready: {} KV blocks, {} ranks, {}", arena_.blocks(), ranks(),
               runner_->kernels().isa == Isa::kAvx512 ? "AVX-512" : "AVX2");
  return {};
}

base::Status Rank::serve() {
  while (true) {
    const std::uint32_t bell = group_->doorbell();
    TRIMTAB_TRY(take_events());
    stopping_ = stopping_ || terminated.load();
    const RankRole::Proposal mine = role_->propose();
    report_when_idle();
    auto all = group_->all_gather({mine.vote.value, mine.has_work, stopping_, std::int64_t{bell}});
    if (!all) return tl::unexpected(all.error());
    bool work = false, stop = false;
    std::int64_t oldest_bell = INT64_MAX;
    for (const Group::Values& values : *all) {
      work = work || values[1] != 0;
      stop = stop || values[2] != 0;
      oldest_bell = std::min(oldest_bell, values[3]);
    }
    if (stop) {
      group_->leave();
      return loss_;
    }
    if (work) {
      TRIMTAB_TRY(step(*all));
    } else {
      // The oldest bell anyone saw: whoever was rung since wakes everyone, and nobody waits alone.
      TRIMTAB_TRY(group_->sleep(static_cast<std::uint32_t>(oldest_bell)));
    }
  }
}

void Rank::report_when_idle() {
  const bool idle = role_->idle();
  if (idle && !idle_) outbox_->send(wire::Idle{role_->blocks_free()});
  idle_ = idle;
}

base::Status Rank::take_events() {
  for (Event& event : inbox_->take()) {
    if (auto* done = std::get_if<MoveDone>(&event)) {
      role_->on_moved(std::move(*done));
    } else if (auto* coming = std::get_if<HitComing>(&event)) {
      role_->on_coming(std::move(*coming));
    } else if (auto* state = std::get_if<StateDone>(&event)) {
      role_->on_state(std::move(*state));
    } else if (auto* lost = std::get_if<ControlLost>(&event)) {
      stopping_ = true;
      loss_ = base::fail(Code::kUnavailable, "the control process is gone: " + lost->reason, "engine");
    } else if (const auto& frame = std::get<ipc::Frame>(event);
               wire::type_of(frame) == wire::Type::kShutdown) {
      stopping_ = true;
    } else {
      TRIMTAB_TRY(role_->on_frame(frame));
    }
  }
  return {};
}

base::Status Rank::step(std::span<const Group::Values> proposals) {
  std::vector<base::Nanos> votes;
  for (const Group::Values& values : proposals) votes.push_back(base::Nanos{values[0]});
  const base::Nanos budget = options_.role == model::Role::kPrefill
                                 ? policy::agree(votes, policy::RankConfig::from(options_.config.prefill))
                                 : base::kForever;
  const std::span<const Segment> segments = role_->plan(budget);
  std::int64_t mine = 0;
  for (const Segment& segment : segments) mine += static_cast<std::int64_t>(segment.tokens.size());
  auto all = group_->all_gather({mine, 0, 0, 0});
  if (!all) return tl::unexpected(all.error());
  std::vector<std::size_t> rows;
  for (const Group::Values& values : *all) rows.push_back(static_cast<std::size_t>(values[0]));
  const std::size_t waves = Forward::waves_for(*std::max_element(rows.begin(), rows.end()));
  if (shared_) shared_->begin_step(rows, waves);
  TRIMTAB_TRY(forward_->step(segments, waves));
  if (mine > 0) role_->finish_step(*forward_);
  return {};
}

}  // namespace

int run_rank(const RankOptions& options) {
  const bool prefill = options.role == model::Role::kPrefill;
  obs::start_log(fmt::format("{} {}.{}", prefill ? "prefill" : "decode", options.engine, options.rank));
  terminated.store(false);
  catch_signals();
  Rank rank(options);
  base::Status status = rank.start();
  if (status) status = rank.serve();
  if (status || terminated.load()) return 0;
  spdlog::error("{}", base::to_string(status.error()));
  return 1;
}

}  // namespace trimtab::engine
