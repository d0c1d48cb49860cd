#include "kv_pool/fetch_ticket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kv_pool/fetch_ticket_state.h"

namespace trimtab::kv_pool {

namespace {

base::Status failure_of(const ProgressEntry& entry, const std::string& name) {
  const auto fail = [&](base::Code code, const std::string& how) {
    return base::fail(code, "block " + name + how, "kv_pool");
  };
  switch (entry.outcome) {
    case FetchOutcome::kMissing:
      return fail(base::Code::kNotFound, " is no longer in the pool");
    case FetchOutcome::kFailed:
      return fail(base::Code::kUnavailable, " could not be read in time");
    case FetchOutcome::kLate:
      return fail(base::Code::kDeadlineExceeded, " did not come before the deadline");
    default:
      return fail(base::Code::kResourceExhausted, " is of a plan with more blocks than the loader takes");
  }
}

}  // namespace

void FetchTicket::State::news(const ProgressEntry& entry) {
  if (entry.block == ProgressEntry::kWholePlan) {
    for (std::uint32_t i = 0; i < blocks.size(); ++i) failed(i, entry);
    return;
  }
  if (entry.block >= blocks.size()) return;
  Block& block = blocks[entry.block];
  if (block.over) return;
  if (entry.outcome != FetchOutcome::kLayers && entry.outcome != FetchOutcome::kWhole)
    return failed(entry.block, entry);
  block.slot = entry.slot;
  const bool is_whole = entry.outcome == FetchOutcome::kWhole;
  const auto come =
      is_whole ? entry.layers : std::min(entry.layers, static_cast<std::uint32_t>(ready.size()) - 1);
  for (; block.layers < come; ++block.layers) ready[block.layers].push_back(entry.block);
  if (!is_whole) return;
  block.over = block.whole = true;
  block.checksum = entry.checksum;
  done.push_back({entry.block, {}});
}

void FetchTicket::State::failed(std::uint32_t number, const ProgressEntry& entry) {
  Block& block = blocks[number];
  if (block.over) return;
  block.over = true;
  base::Status why = failure_of(entry, model::to_string(block.key));
  if (!failure) failure = why.error();
  // Nobody can be reading it, and it may have a slot all the same.
  if (block.layers == 0) to_release.push_back(number);
  done.push_back({number, std::move(why)});
}

void FetchTicket::State::release(std::vector<std::uint32_t> numbers, bool corrupt) {
  if (numbers.empty()) return;
  // Lost words are no loss: a connection that breaks gives everything back.
  [[maybe_unused]] const auto told = link->send(
      wire::to_frame(protocol::Release{id, std::move(numbers), corrupt ? std::uint8_t{1} : std::uint8_t{0}}));
}

FetchTicket::FetchTicket(FetchTicket&&) noexcept = default;

FetchTicket& FetchTicket::operator=(FetchTicket&& other) noexcept {
  if (this != &other) {
    end();
    state_ = std::move(other.state_);
  }
  return *this;
}

FetchTicket::~FetchTicket() { end(); }

void FetchTicket::end() {
  if (state_ == nullptr) return;
  state_->link->close_plan(state_->id);
  if (state_->link->alive()) [[maybe_unused]]
    const auto told = state_->link->send(wire::to_frame(protocol::CancelFetch{state_->id}));
  state_.reset();
}

std::uint32_t FetchTicket::blocks() const { return static_cast<std::uint32_t>(state_->blocks.size()); }
std::uint32_t FetchTicket::layers() const { return static_cast<std::uint32_t>(state_->ready.size()); }

base::Status FetchTicket::take(std::uint32_t layer, std::vector<Arrival>& arrivals, base::Nanos wait) {
  State& state = *state_;
  TRIMTAB_CHECK(layer < state.ready.size(), "a layer of the block");
  std::vector<std::uint32_t> give_back;
  std::optional<base::Error> failure;
  TRIMTAB_TRY(state.link->wait_until(
      [&] {
        give_back = std::exchange(state.to_release, {});
        failure = state.failure;
        for (const std::uint32_t block : std::exchange(state.ready[layer], {}))
          arrivals.push_back({block, state.link->slot(state.blocks[block].slot)->data()});
        return failure || !arrivals.empty() || !give_back.empty();
      },
      wait));
  state.release(std::move(give_back), false);
  if (failure) return tl::unexpected(*failure);
  return {};
}

base::Status FetchTicket::finished(std::vector<Finished>& blocks, base::Nanos wait) {
  State& state = *state_;
  std::vector<std::uint32_t> give_back;
  TRIMTAB_TRY(state.link->wait_until(
      [&] {
        give_back = std::exchange(state.to_release, {});
        for (Finished& one : std::exchange(state.done, {})) blocks.push_back(std::move(one));
        return !blocks.empty();
      },
      wait));
  state.release(std::move(give_back), false);
  return {};
}

base::Status FetchTicket::copy(std::uint32_t number, std::span<std::byte> destination) {
  State& state = *state_;
  State::Block block;
  {
    const std::lock_guard lock(state.link->mutex());
    TRIMTAB_CHECK(number < state.blocks.size() && state.blocks[number].whole, "a block that is whole");
    block = state.blocks[number];
  }
  TRIMTAB_TRY(state.link->alive());
  const auto source = state.link->slot(block.slot);
  if (!source) return tl::unexpected(source.error());
  if (destination.size() != source->size())
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("a buffer of {} bytes, the pool's blocks have {}", destination.size(), source->size()),
        "kv_pool");
  std::memcpy(destination.data(), source->data(), destination.size());
  // The copy is verified, not the slot: whatever happened to the slot meanwhile, this is what will be used.
  const bool intact = content_checksum(block.key, destination) == block.checksum;
  state.release({number}, !intact);
  if (!intact)
    return base::fail(base::Code::kDataLoss,
                      "block " + model::to_string(block.key) + " is damaged in the pool's memory", "kv_pool");
  return {};
}

std::uint64_t FetchTicket::checksum(std::uint32_t number) const {
  const std::lock_guard lock(state_->link->mutex());
  TRIMTAB_CHECK(number < state_->blocks.size() && state_->blocks[number].whole, "a block that is whole");
  return state_->blocks[number].checksum;
}

void FetchTicket::release(std::span<const std::uint32_t> blocks) {
  state_->release({blocks.begin(), blocks.end()}, false);
}

}  // namespace trimtab::kv_pool
