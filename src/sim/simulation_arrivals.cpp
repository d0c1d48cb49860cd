// Clients: when they ask, which entrypoint hears them, and how their requests end.
#include <fmt/format.h>

#include <algorithm>

#include "sim/simulation.h"

namespace trimtab::sim {
namespace {

constexpr std::uint64_t kNextOfTrace = 1, kFollowUp = 0;  // the former depend on nothing

}  // namespace

void Simulation::schedule_next() {
  const auto item = workload_.next();
  if (!item) {
    drawn_ = INT64_MAX;
    return;
  }
  if (item->repeat >= repeats_begun_) {
    store_before(item->repeat);
    repeats_begun_ = item->repeat + 1;
  }
  schedule({*item, item->at, 0}, kNextOfTrace);
}

void Simulation::schedule(const Arriving& arriving, std::uint64_t kind) {
  std::uint32_t at = 0;
  if (arriving_free_.empty()) {
    at = static_cast<std::uint32_t>(arriving_.size());
    arriving_.push_back(arriving);
  } else {
    at = arriving_free_.back();
    arriving_free_.pop_back();
    arriving_[at] = arriving;
  }
  queue_.at(arriving.item.at, EventKind::kArrival, at, kind);
}

/// In turn, past those that are down.
std::optional<std::uint32_t> Simulation::entrypoint_up() {
  const std::uint32_t count = scenario_.entrypoints.count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto entrypoint = static_cast<std::uint32_t>(entrypoint_turn_++ % count);
    if (entrypoints_down_[entrypoint] == 0) return entrypoint;
  }
  return std::nullopt;
}

void Simulation::arrive(const Arriving& arriving) {
  const model::TraceRequest& asked = workload_.request(arriving.item);
  if (arriving.tries == 0) {
    if (result_.submitted++ == 0) first_arrival_ = queue_.now();
    result_.prompt_tokens += asked.prompt_tokens;
    if (recorder_ != nullptr) recorder_->arrived(queue_.now());
  }
  if (const std::int64_t limit = scenario_.profile.context_limit.value; asked.prompt_tokens >= limit) {
    return refused(arriving, fmt::format("the prompt of {} tokens leaves no room for an answer: the model's "
                                         "context is {} tokens",
                                         asked.prompt_tokens, limit));
  }
  const auto entrypoint = entrypoint_up();
  if (!entrypoint) return ask_again(arriving, "no entrypoint answered");
  submit(arriving, *entrypoint);
}

void Simulation::submit(const Arriving& arriving, std::uint32_t entrypoint) {
  const model::TraceRequest& asked = workload_.request(arriving.item);
  std::vector<model::ImageSpan> images;
  if (asked.images_count > 0) {
    auto spans =
        image_spans(workload_.trace().images_of(asked), asked.prompt_tokens, scenario_.profile.vision);
    if (!spans) {
      ++result_.vision.unencodable;
      return refused(arriving, spans.error().message);
    }
    images = std::move(*spans);
  }
  std::uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::uint32_t>(requests_.size());
    requests_.emplace_back();
    items_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  SimRequest& request = requests_[slot];
  const std::uint64_t prefill_pass = request.prefill_pass, decode_pass = request.decode_pass;
  request = SimRequest{};
  request.prefill_pass = prefill_pass + 1;
  request.decode_pass = decode_pass + 1;
  request.id = RequestId{((++sequence_ * scenario_.entrypoints.count + entrypoint) << kSlotBits) | slot};
  request.live = true;
  request.prompt = asked.prompt_tokens;
  // Clients allow what the context allows: nobody but the engine knows the real length.
  const std::int64_t room = scenario_.profile.context_limit.value - request.prompt;
  request.output = std::clamp<std::int64_t>(asked.output_tokens, 1, room);
  if (asked.output_tokens > room) ++result_.faults.outputs_cut;
  request.submitted = arriving.submitted;
  request.entrypoint = entrypoint;
  request.tries = arriving.tries;
  request.images = images;
  items_[slot] = arriving.item;
  ++live_;
  tell(cluster::Submitted{request.id, TokenCount{request.prompt},
                          TokenCount{std::max(room, request.output + 1)}, std::move(images), base::kForever});
}

/// What clients do when nothing has come yet: wait, then twice as long, and give up.
void Simulation::ask_again(const Arriving& arriving, const std::string& why) {
  if (arriving.tries >= scenario_.entrypoints.retries) {
    return refused(arriving, fmt::format("{}; its client gave up after {} tries", why, arriving.tries + 1));
  }
  Arriving again = arriving;
  const auto doubled = static_cast<std::int64_t>(1ULL << std::min(arriving.tries, 20U));
  again.item.at = queue_.now() + Nanos{scenario_.entrypoints.retry_after.value * doubled};
  ++again.tries;
  if (recorder_ != nullptr) recorder_->asked_again(queue_.now());
  schedule(again, kFollowUp);
}

void Simulation::fail_in_words(std::string message) {
  ++result_.failed;
  if (recorder_ != nullptr) recorder_->failed(queue_.now());
  if (result_.failures.size() < 5) result_.failures.push_back(std::move(message));
}

/// It never came to hold a slot.
void Simulation::refused(const Arriving& arriving, const std::string& why) {
  fail_in_words(why);
  last_end_ = queue_.now();
  if (const auto next = workload_.follow(arriving.item, queue_.now()))
    schedule({*next, next->at, 0}, kFollowUp);
}

// A stream lives on its socket, and the socket died with the process: what was on its way to a client is
// lost. Where no token had come, the client asks again (as the usual SDKs do) and another entrypoint takes
// it.
void Simulation::lose_entrypoint(std::uint32_t entrypoint) {
  for (std::uint32_t slot = 0; slot < requests_.size(); ++slot) {
    const SimRequest& request = requests_[slot];
    if (!request.live || request.entrypoint != entrypoint) continue;
    const Arriving arriving{items_[slot], request.submitted, request.tries};
    const std::int64_t streamed = request.generated;
    const bool moves = request.first_token.value == 0;
    tell(cluster::Cancelled{request.id});
    if (placers_ != nullptr) placers_->ended_there(request.id, queue_.now());
    if (recorder_ != nullptr) recorder_->ended(slot, 0, queue_.now());
    requests_[slot].live = false;
    ended_.push_back(slot);
    --live_;
    free_ended();
    if (moves) {
      ++result_.faults.requests_moved;
      ask_again(arriving, fmt::format("entrypoint {} was lost", entrypoint));
    } else {
      ++result_.faults.streams_broken;
      refused(arriving,
              fmt::format("entrypoint {} was lost: the stream broke after {} tokens", entrypoint, streamed));
    }
  }
}

void Simulation::end(std::uint32_t slot) {
  requests_[slot].live = false;
  ended_.push_back(slot);
  last_end_ = queue_.now();
  --live_;
  if (const auto next = workload_.follow(items_[slot], queue_.now()))
    schedule({*next, next->at, 0}, kFollowUp);
}

/// Once everything that still names them has been done.
void Simulation::free_ended() {
  for (const std::uint32_t slot : ended_) {
    ++requests_[slot].prefill_pass;
    ++requests_[slot].decode_pass;
    requests_[slot].id = RequestId{0};
    free_.push_back(slot);
  }
  ended_.clear();
}

}  // namespace trimtab::sim
