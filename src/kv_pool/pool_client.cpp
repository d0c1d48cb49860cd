#include "kv_pool/pool_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "ipc/steady_clock.h"
#include "kv_pool/content_checksum.h"
#include "kv_pool/fetch_ticket_state.h"
#include "kv_pool/pool_link.h"
#include "kv_pool/protocol.h"

namespace trimtab::kv_pool {

namespace {

constexpr base::Nanos kPauseMin{100'000'000};
constexpr base::Nanos kPauseMax{10'000'000'000};
constexpr base::Nanos kReportPatience{10'000'000'000};  // it counts all blocks

base::Status unavailable(std::string message) {
  return base::fail(base::Code::kUnavailable, std::move(message), "kv_pool");
}

}  // namespace

struct PoolClient::Impl {
  std::string socket_path;
  ClientOptions options;
  std::mutex mutex;
  std::shared_ptr<PoolLink> link;
  std::uint64_t block_bytes = 0;  // of the last pool that answered
  base::Nanos pause = kPauseMin;  // after the next failure
  base::Nanos closed_until{0};    // no dialling before
  std::string last_failure;
  ipc::SteadyClock clock;

  base::Status dial(base::Nanos patience);
  base::Status ensure_connected();
  /// Connected, and to a pool of blocks of this size (a restarted one may have another).
  base::Status ready_for(std::size_t bytes);
  /// The connection is worth nothing any more; whatever it holds in the loader goes with it.
  void hang_up(const base::Error& reason);

  template <class Answer, class Question>
  base::Result<Answer> ask(const Question& question, base::Nanos timeout);
  template <class Answer, class Question>
  base::Result<Answer> ask(const Question& question) {
    return ask<Answer>(question, options.timeout);
  }
  template <class Message>
  base::Status tell(const Message& message);

  base::Result<std::span<std::byte>> slot(std::uint32_t number);
};

base::Status PoolClient::Impl::dial(base::Nanos patience) {
  auto dialled = PoolLink::dial(socket_path, options.block_bytes, patience, options.timeout);
  if (!dialled) return tl::unexpected(dialled.error());
  link = std::move(*dialled);
  block_bytes = link->pool().block_bytes;
  return {};
}

base::Status PoolClient::Impl::ensure_connected() {
  if (link != nullptr) {
    if (link->alive() && !link->peer_gone()) return {};
    // A loader that was restarted listens already: no call need fail for it. Tickets keep the old link.
    link.reset();
  }
  if (clock.now() < closed_until) return unavailable("the pool is down: " + last_failure);
  if (auto dialled = dial(base::Nanos{0}); !dialled) {
    hang_up(dialled.error());
    return dialled;
  }
  return {};
}

base::Status PoolClient::Impl::ready_for(std::size_t bytes) {
  TRIMTAB_TRY(ensure_connected());
  if (bytes == block_bytes) return {};
  return base::fail(base::Code::kInvalidArgument,
                    fmt::format("a buffer of {} bytes, the pool's blocks have {}", bytes, block_bytes),
                    "kv_pool");
}

void PoolClient::Impl::hang_up(const base::Error& reason) {
  if (link != nullptr) link->fail(reason);
  link.reset();
  last_failure = reason.message;
  closed_until = clock.now() + pause;
  pause = std::min(pause * 2, kPauseMax);
}

template <class Answer, class Question>
base::Result<Answer> PoolClient::Impl::ask(const Question& question, base::Nanos timeout) {
  TRIMTAB_TRY(tell(question));
  auto frame = link->receive(timeout);
  base::Result<Answer> answer =
      base::fail(base::Code::kUnavailable,
                 fmt::format("the pool gave no answer in {} ms", timeout.value / 1'000'000), "kv_pool");
  if (!frame) {
    answer = tl::unexpected(frame.error());
  } else if (frame->has_value()) {
    answer = wire::from_frame<Answer>(**frame);
  }
  if (answer) {
    pause = kPauseMin;
  } else {
    hang_up(answer.error());
  }
  return answer;
}

template <class Message>
base::Status PoolClient::Impl::tell(const Message& message) {
  TRIMTAB_TRY(ensure_connected());
  auto sent = link->send(wire::to_frame(message));
  if (!sent) hang_up(sent.error());
  return sent;
}

base::Result<std::span<std::byte>> PoolClient::Impl::slot(std::uint32_t number) {
  auto bytes = link->slot(number);
  if (!bytes) hang_up(bytes.error());
  return bytes;
}

PoolClient::PoolClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PoolClient::PoolClient(PoolClient&&) noexcept = default;
PoolClient& PoolClient::operator=(PoolClient&&) noexcept = default;
PoolClient::~PoolClient() = default;

base::Result<PoolClient> PoolClient::connect(const std::string& socket_path, base::Nanos patience,
                                             ClientOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->socket_path = socket_path;
  impl->options = options;
  TRIMTAB_TRY(impl->dial(patience));
  return PoolClient(std::move(impl));
}

base::Result<Match> PoolClient::match(std::span<const BlockKey> keys, bool counted,
                                      std::uint32_t prompt_blocks) {
  const std::lock_guard lock(impl_->mutex);
  const protocol::Match question{
      counted ? std::uint8_t{1} : std::uint8_t{0}, prompt_blocks, {keys.begin(), keys.end()}};
  auto answer = impl_->ask<protocol::Matched>(question);
  if (!answer) return tl::unexpected(answer.error());
  return Match{std::min(answer->blocks, static_cast<std::uint32_t>(keys.size())), answer->epoch,
               answer->request};
}

bool PoolClient::answered(std::uint64_t request, std::uint32_t tokens) {
  const std::unique_lock lock(impl_->mutex, std::try_to_lock);
  if (request == 0 || !lock || impl_->link == nullptr || !impl_->link->alive()) return false;
  return impl_->link->send_at_once(wire::to_frame(protocol::Answered{request, tokens}));
}

base::Status PoolClient::get(BlockKey key, std::span<std::byte> destination) {
  using protocol::GetOutcome;
  const std::lock_guard lock(impl_->mutex);
  TRIMTAB_TRY(impl_->ready_for(destination.size()));
  const auto got = impl_->ask<protocol::Got>(protocol::Get{key});
  if (!got) return tl::unexpected(got.error());
  const std::string name = model::to_string(key);
  if (got->outcome == GetOutcome::kMissing)
    return base::fail(base::Code::kNotFound, "block " + name + " is no longer in the pool", "kv_pool");
  if (got->outcome == GetOutcome::kCorrupt)
    return base::fail(base::Code::kDataLoss, "block " + name + " is damaged in the pool's file", "kv_pool");
  if (got->outcome == GetOutcome::kRefused)
    return base::fail(base::Code::kResourceExhausted, "every slot of the pool's memory is in use", "kv_pool");
  const auto source = impl_->slot(got->slot);
  if (!source) return tl::unexpected(source.error());
  std::memcpy(destination.data(), source->data(), destination.size());
  // The copy is verified, not the slot: whatever happened to the slot meanwhile, this is what will be used.
  const bool intact = content_checksum(key, destination) == got->checksum;
  // A lost Unpin is no loss of the block: the loader drops the pins of a connection that breaks.
  [[maybe_unused]] const auto told =
      impl_->tell(protocol::Unpin{got->slot, intact ? std::uint8_t{0} : std::uint8_t{1}});
  if (!intact)
    return base::fail(base::Code::kDataLoss, "block " + name + " is damaged in the pool's memory", "kv_pool");
  return {};
}

base::Result<FetchTicket> PoolClient::fetch(std::span<const BlockKey> keys, base::Nanos deadline,
                                            std::int32_t priority) {
  TRIMTAB_CHECK(!keys.empty(), "a plan has blocks");
  const std::lock_guard lock(impl_->mutex);
  TRIMTAB_TRY(impl_->ensure_connected());
  auto state = std::make_shared<FetchTicket::State>();
  state->link = impl_->link;
  for (const BlockKey key : keys) state->blocks.push_back({key, 0, 0, false, false, 0});
  state->ready.resize(impl_->link->pool().layers);
  // The link forgets the plan before the ticket's state goes.
  state->id = impl_->link->open_plan([of = state.get()](const ProgressEntry& entry) { of->news(entry); });
  FetchTicket ticket(state);
  TRIMTAB_TRY(impl_->tell(protocol::Fetch{state->id, {keys.begin(), keys.end()}, deadline.value, priority}));
  return ticket;
}

std::uint32_t PoolClient::fetch_blocks_most() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->link == nullptr ? 0 : impl_->link->pool().held_most;
}

base::Status PoolClient::put(BlockKey key, std::span<const std::byte> source,
                             std::optional<BlockKey> parent) {
  using protocol::PutOutcome;
  const std::lock_guard lock(impl_->mutex);
  TRIMTAB_TRY(impl_->ready_for(source.size()));
  const protocol::Put question{key, parent ? std::uint8_t{1} : std::uint8_t{0}, parent.value_or(BlockKey{})};
  const auto granted = impl_->ask<protocol::PutSlot>(question);
  if (!granted) return tl::unexpected(granted.error());
  if (granted->outcome == PutOutcome::kPresent) return {};
  if (granted->outcome == PutOutcome::kRefused)
    return base::fail(base::Code::kResourceExhausted, "every slot of the pool's memory is in use", "kv_pool");
  const auto slot = impl_->slot(granted->slot);
  if (!slot) return tl::unexpected(slot.error());
  // Of the source, so that a copy that goes wrong is found by the first reader.
  const std::uint64_t checksum = content_checksum(key, source);
  std::memcpy(slot->data(), source.data(), source.size());
  const auto committed = impl_->ask<protocol::Committed>(protocol::Commit{granted->slot, checksum});
  if (!committed) return tl::unexpected(committed.error());
  return {};
}

base::Status PoolClient::flush(base::Nanos timeout) {
  const std::lock_guard lock(impl_->mutex);
  const auto flushed = impl_->ask<protocol::Flushed>(protocol::Flush{}, timeout);
  if (!flushed) return tl::unexpected(flushed.error());
  if (flushed->durable == 0) {
    return base::fail(base::Code::kIo, "the pool keeps blocks in memory only: its directory is not writable",
                      "kv_pool");
  }
  return {};
}

base::Result<PoolStats> PoolClient::stats() {
  const std::lock_guard lock(impl_->mutex);
  auto answer = impl_->ask<protocol::Stats>(protocol::AskStats{});
  if (!answer) return tl::unexpected(answer.error());
  return answer->stats;
}

base::Result<PoolReport> PoolClient::report() {
  const std::lock_guard lock(impl_->mutex);
  auto answer = impl_->ask<protocol::Pool>(protocol::AskPool{}, kReportPatience);
  if (!answer) return tl::unexpected(answer.error());
  if (!answer->refusal.empty()) return base::fail(base::Code::kInvalidArgument, answer->refusal, "kv_pool");
  return std::move(answer->report);
}

base::Status PoolClient::manage(const protocol::Manage& change, base::Nanos timeout) {
  const std::lock_guard lock(impl_->mutex);
  const auto answer = impl_->ask<protocol::Managed>(change, timeout);
  if (!answer) return tl::unexpected(answer.error());
  if (!answer->refusal.empty()) return base::fail(base::Code::kInvalidArgument, answer->refusal, "kv_pool");
  return {};
}

std::uint64_t PoolClient::block_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->block_bytes;
}

}  // namespace trimtab::kv_pool
