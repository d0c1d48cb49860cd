#include "engine/rank_harness.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "ipc/steady_clock.h"
#include "kv/key_chain.h"
#include "kv_pool/loader.h"

namespace trimtab::engine {

namespace {

std::atomic<bool> pool_stop{false};

model::BlockKey harness_root() { return kv::root_key({"test", "f16", "none", "", ""}); }

}  // namespace

double RankHarness::now() { return base::to_seconds(ipc::SteadyClock().now()); }

RankHarness::RankHarness(Setup setup) : setup_(std::move(setup)) {
  static int serial = 0;
  const std::string name = fmt::format("trimtab-test-{}-{}", getpid(), serial++);
  runtime_ = "/tmp/" + name;
  shm_ = "/dev/shm/" + name;
  std::filesystem::create_directories(runtime_);
  std::filesystem::create_directories(shm_);
}

RankHarness::~RankHarness() {
  for (const auto& [place, child] : children_) kill(child, SIGKILL);
  for (const auto& [place, child] : children_)
    if (!exits_.contains(place)) waitpid(child, nullptr, 0);
  if (pool_ > 0) {
    kill(pool_, SIGTERM);
    waitpid(pool_, nullptr, 0);
  }
  std::filesystem::remove_all(runtime_);
  std::filesystem::remove_all(shm_);
}

bool RankHarness::receive_some(double seconds) {
  std::vector<pollfd> items;
  for (const auto& [place, peer] : peers_) items.push_back({peer.channel->fd(), POLLIN, 0});
  if (poll(items.data(), items.size(), seconds > 0 ? static_cast<int>(seconds * 1e3) + 1 : 0) <= 0)
    return false;
  bool some = false;
  for (auto& [place, peer] : peers_) {
    while (true) {
      auto frame = peer.channel->receive(base::Nanos{0});
      if (!frame || !*frame) break;
      peer.inbox.push_back(std::move(**frame));
      some = true;
    }
  }
  if (!some) usleep(1'000);  // a peer that closed is always readable
  return some;
}

pid_t RankHarness::spawn_rank(model::Role role, std::uint32_t rank) {
  RankOptions options;
  options.config.prefill.ranks = setup_.prefill_ranks;
  options.config.decode.ranks = setup_.decode_ranks;
  options.config.prefill.kv_blocks = setup_.prefill_blocks;
  options.config.decode.kv_blocks = setup_.decode_blocks;
  options.config.prefill.step_budget_ms = setup_.step_budget_ms;
  options.config.prefill.quota_scope = model::QuotaScope::kWholeStep;
  options.config.engine.ffn_experts = setup_.ffn_experts;
  options.profile.cost = setup_.cost;
  options.profile.kv = setup_.kv();
  options.profile.context_limit = base::TokenCount{1'000'000};
  options.role = role;
  options.rank = rank;
  options.model_path = setup_.model_path;
  options.runtime_dir = runtime_;
  options.shm_dir = shm_;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    listener_.reset();
    _exit(run_rank(options));
  }
  return child;
}

pid_t RankHarness::spawn_pool() {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGTERM, [](int) { pool_stop.store(true); });
  kv_pool::LoaderOptions options;
  options.socket_path = kv_socket();
  if (!setup_.pool_directory.empty()) options.targets = {setup_.pool_directory};
  options.kv = setup_.kv();
  options.memory_bytes = 64 * setup_.block_bytes;
  options.file_bytes = 256 * setup_.block_bytes;
  auto status = kv_pool::run_loader(options, pool_stop);
  if (!status) std::fprintf(stderr, "pool: %s\n", base::to_string(status.error()).c_str());
  _exit(status ? 0 : 1);
}

bool RankHarness::start() {
  auto listener = ipc::Listener::bind(runtime_ + "/control.sock");
  if (!listener) return false;
  listener_.emplace(std::move(*listener));
  if (setup_.pool) pool_ = spawn_pool();
  for (std::uint32_t r = 0; r < setup_.prefill_ranks; ++r)
    children_[prefill(r)] = spawn_rank(model::Role::kPrefill, r);
  for (std::uint32_t r = 0; r < setup_.decode_ranks; ++r)
    children_[decode(r)] = spawn_rank(model::Role::kDecode, r);
  while (setup_.pool && !std::filesystem::exists(kv_socket()) && waitpid(pool_, nullptr, WNOHANG) == 0)
    usleep(1000);
  for (std::size_t i = 0; i < children_.size(); ++i) {
    auto fd = listener_->accept(base::Nanos{30'000'000'000});
    if (!fd || !*fd) {
      std::fprintf(stderr, "only %zu of %zu ranks came\n", i, children_.size());
      return false;
    }
    ipc::Channel channel(**fd);
    auto frame = channel.receive(base::Nanos{10'000'000'000});
    if (!frame || !*frame) return false;
    auto hello = wire::from_frame<wire::Hello>(**frame);
    if (!hello) return false;
    Peer& peer = peers_[{hello->role, hello->rank}];
    peer.hello = *hello;
    peer.channel.emplace(std::move(channel));
  }
  return true;
}

std::vector<int> RankHarness::stop() {
  for (auto& [place, peer] : peers_) (void)peer.channel->send(wire::to_frame(wire::Shutdown{}));
  std::vector<int> codes;
  for (const auto& [place, child] : children_) codes.push_back(exit_code(place, 20).value_or(-1));
  return codes;
}

std::optional<int> RankHarness::exit_code(Place place, double seconds) {
  if (exits_.contains(place)) return exits_[place];
  const double end = now() + seconds;
  int status = 0;
  while (waitpid(children_.at(place), &status, WNOHANG) == 0) {
    if (now() > end) return std::nullopt;
    usleep(2'000);
  }
  return exits_[place] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<model::BlockKey> RankHarness::keys(const Ask& ask) const {
  return kv::block_keys(harness_root(), ask.tokens, ask.images);
}

void RankHarness::start_prefill(model::RequestId id, const Ask& ask) {
  wire::PrefillStart start;
  start.id = id;
  start.tokens = ask.tokens;
  start.keys = keys(ask);
  start.hit_tokens = ask.hit_blocks * 128;
  start.sampling = ask.sampling;
  start.images = ask.images;
  start.stop_tokens = ask.stop_tokens;
  start.hand_over = ask.hand_over ? 1 : 0;
  start.window = ask.window;
  send(prefill(ask.prefill_rank), start);
}

bool RankHarness::reserve(model::RequestId id, const Ask& ask) {
  const auto tokens = static_cast<std::int64_t>(ask.tokens.size()) + ask.headroom_tokens;
  send(decode(ask.decode_rank), wire::DecodeReserve{id, static_cast<std::uint32_t>(tokens)});
  auto reserved = wait_for<wire::Reserved>(decode(ask.decode_rank), id);
  if (!reserved || reserved->blocks.empty()) return false;
  send(prefill(ask.prefill_rank), wire::DecodeTarget{id,
                                                     {model::EngineId{0}, ask.decode_rank},
                                                     hello(decode(ask.decode_rank)).segment,
                                                     reserved->blocks,
                                                     reserved->state_slot});
  return true;
}

void RankHarness::start_decode(model::RequestId id, const Ask& ask, std::int32_t first_token) {
  wire::DecodeStart start;
  start.id = id;
  start.tokens = ask.tokens;
  start.tokens.push_back(first_token);
  start.prompt_tokens = static_cast<std::uint32_t>(ask.tokens.size());
  start.keys = keys(ask);
  start.key_root = harness_root();
  start.images = ask.images;
  start.sampling = ask.sampling;
  start.output_limit = ask.output_limit - 1;
  start.stop_tokens = ask.stop_tokens;
  send(decode(ask.decode_rank), start);
}

RankHarness::Answer RankHarness::follow(model::RequestId id, const Ask& ask) {
  Answer answer;
  Place place = decode(ask.decode_rank);
  std::optional<wire::TokenOut> last;
  while (answer.finish == model::FinishReason::kNone) {
    // A step carries tokens of other requests too, which somebody else follows: one token is taken out.
    const bool got = wait_frame(place, 30, [&](ipc::Frame& frame) {
      if (wire::type_of(frame) == wire::Type::kPreempted) {
        auto message = wire::from_frame<wire::Preempted>(frame);
        answer.preempted = message && message->id == id;
        return answer.preempted ? Take::kWhole : Take::kNo;
      }
      if (wire::type_of(frame) == wire::Type::kRequestFailed) {
        auto message = wire::from_frame<wire::RequestFailed>(frame);
        if (!message || message->id != id) return Take::kNo;
        answer.failure = message->message;
        return Take::kWhole;
      }
      if (wire::type_of(frame) != wire::Type::kDecodeStep) return Take::kNo;
      auto step = wire::from_frame<wire::DecodeStep>(frame);
      if (!step) return Take::kNo;
      const auto mine = std::find_if(step->tokens.begin(), step->tokens.end(),
                                     [id](const wire::TokenOut& token) { return token.id == id; });
      if (mine == step->tokens.end()) return Take::kNo;
      last = *mine;
      step->tokens.erase(mine);
      frame = wire::to_frame(*step);
      return Take::kPart;
    });
    if (last) {
      answer.tokens.push_back(last->token);
      answer.checksums.push_back(last->logits_checksum);
      answer.finish = last->finish;
      last.reset();
      continue;
    }
    if (!got && answer.failure.empty()) answer.failure = "no answer in time";
    if (answer.preempted || !answer.failure.empty()) return answer;
  }
  return answer;
}

RankHarness::Answer RankHarness::run(model::RequestId id, const Ask& ask) {
  Answer answer;
  start_prefill(id, ask);
  if (!reserve(id, ask)) {
    answer.failure = "refused";
    return answer;
  }
  auto done = wait_for<wire::PrefillDone>(prefill(ask.prefill_rank), id);
  if (!done) {
    auto failed = wait_for<wire::RequestFailed>(prefill(ask.prefill_rank), id, 0);
    answer.failure = failed ? failed->message : "no PrefillDone";
    return answer;
  }
  if (done->finish == model::FinishReason::kNone && ask.output_limit > 1) {
    start_decode(id, ask, done->first_token);
    answer = follow(id, ask);
  } else {
    send(decode(ask.decode_rank), wire::Abort{id});
    (void)wait_for<wire::Released>(decode(ask.decode_rank), id);
    answer.finish = done->finish;
  }
  answer.prefill = *done;
  answer.tokens.insert(answer.tokens.begin(), done->first_token);
  answer.checksums.insert(answer.checksums.begin(), done->logits_checksum);
  return answer;
}

}  // namespace trimtab::engine
