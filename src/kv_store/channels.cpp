#include "kv_store/channels.h"

#include <algorithm>
#include <utility>

namespace trimtab::kv_store {

using kv_target::Completion;
using kv_target::Outcome;
using kv_target::Verb;

namespace {
constexpr std::size_t kProbeBytes = 64;
constexpr std::uint32_t kInARow = 1'024;
// No block has this key: it is no hash's likely value, and nothing is written under it.
constexpr kv_target::ShardName kProbeName{{UINT64_MAX, UINT64_MAX}, UINT8_MAX};
constexpr std::size_t kUnreadMost = 8;
}  // namespace

Channels::Channels(std::vector<std::unique_ptr<kv_target::Target>> targets, const Options& options,
                   BufferPool& pool, const OpTable& ops)
    : options_(options), pool_(pool), ops_(ops) {
  for (auto& target : targets) add(std::move(target));
}

Channels::~Channels() = default;

void Channels::add(std::unique_ptr<kv_target::Target> target) {
  Channel channel(std::move(target), options_.health);
  channel.probe_buffer.resize(kProbeBytes);
  open(channel);
  channels_.push_back(std::move(channel));
}

void Channels::open(Channel& channel) {
  const kv_target::Limits limits = channel.target->limits();
  channel.bytes_most = std::min(limits.bytes_in_flight, options_.target_bytes_in_flight);
  channel.requests_most = std::max(1U, limits.requests_in_flight);
  channel.immediate = channel.target->wake_fd() < 0;
  channel.reads_units = limits.read_unit_bytes > 1;
}

void Channels::release(BufferPool::Id buffer) {
  if (buffer != BufferPool::kNone) pool_.release(buffer);
}

void Channels::send(TargetId id, const Outgoing& outgoing, base::Nanos) {
  Channel& channel = channels_[id];
  if (!channel.health.usable()) {
    refused_.push_back({outgoing.ticket, outgoing.request.verb, id, Outcome::kFailed, 0});
    return;
  }
  if (outgoing.buffer != BufferPool::kNone) pool_.hold(outgoing.buffer);
  if (due(channel) == nullptr) dirty_.push_back(id);
  (outgoing.later ? channel.later : channel.waiting).push_back(outgoing);
}

Channels::Line* Channels::due(Channel& channel) {
  if (channel.later.empty()) return channel.waiting.empty() ? nullptr : &channel.waiting;
  // What may wait does not wait for ever.
  return channel.waiting.empty() || channel.in_a_row >= kInARow ? &channel.later : &channel.waiting;
}

std::uint32_t Channels::slot_for(TargetId target, const Outgoing& outgoing, base::Nanos now) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t at = free_.back();
  free_.pop_back();
  Slot& slot = slots_[at];
  slot.ticket = outgoing.ticket;
  slot.verb = outgoing.request.verb;
  slot.target = target;
  slot.name = outgoing.request.name;
  slot.buffer = outgoing.buffer;
  slot.memory = outgoing.memory;
  slot.bytes = outgoing.request.buffer.size() + outgoing.request.content.size();
  slot.since = now;
  ++slot.generation;
  slot.used = true;
  slot.answered = slot.probe = false;
  ++out_;
  return at;
}

void Channels::free_slot(std::uint32_t at) {
  Slot& slot = slots_[at];
  Channel& channel = channels_[slot.target];
  release(slot.buffer);
  if (!slot.probe) {
    channel.bytes -= slot.bytes;
    --channel.requests;
  }
  slot.used = false;
  slot.memory.reset();
  free_.push_back(at);
  --out_;
}

void Channels::flush(base::Nanos now) {
  std::vector<TargetId> dirty;
  dirty.swap(dirty_);
  for (const TargetId id : dirty) {
    Channel& channel = channels_[id];
    batch_.clear();
    while (Line* queue = due(channel)) {
      Outgoing& next = queue->front();
      // A read that is over needs nothing any more; writes and erases are carried out to the end.
      if (next.request.verb == Verb::kRead && ops_.find(next.ticket.op) == nullptr) {
        release(next.buffer);
        queue->pop_front();
        continue;
      }
      const std::uint64_t bytes = next.request.buffer.size() + next.request.content.size();
      const bool credit =
          channel.requests < channel.requests_most && channel.bytes + bytes <= channel.bytes_most;
      if (!credit && channel.requests > 0) break;
      const std::uint32_t slot = slot_for(id, next, now);
      next.request.tag = std::uint64_t{slots_[slot].generation} << 32 | slot;
      channel.bytes += bytes;
      ++channel.requests;
      ++counters_.requests;
      batch_.push_back(next.request);
      channel.in_a_row = queue == &channel.later || channel.later.empty() ? 0 : channel.in_a_row + 1;
      queue->pop_front();
    }
    if (!batch_.empty()) channel.target->submit(batch_);
    if (due(channel) != nullptr) dirty_.push_back(id);
  }
}

void Channels::purge() {
  for (Channel& channel : channels_) {
    const auto over = [&](const Outgoing& one) {
      const bool is = one.request.verb == Verb::kRead && ops_.find(one.ticket.op) == nullptr;
      if (is) release(one.buffer);
      return is;
    };
    channel.waiting.erase_if(over);
    channel.later.erase_if(over);
  }
}

void Channels::give_up(TargetId id, std::vector<Answer>& answers) {
  Channel& channel = channels_[id];
  for (Line* queue : {&channel.waiting, &channel.later}) {
    for (const Outgoing& one : *queue) {
      answers.push_back({one.ticket, one.request.verb, id, Outcome::kFailed, 0});
      release(one.buffer);
    }
    queue->clear();
  }
  for (std::uint32_t at = 0; at < slots_.size(); ++at) {
    Slot& slot = slots_[at];
    if (!slot.used || slot.target != id || slot.answered || slot.probe) continue;
    slot.answered = true;
    answers.push_back({slot.ticket, slot.verb, id, Outcome::kFailed, 0});
    channel.target->cancel(std::uint64_t{slot.generation} << 32 | at);
  }
}

void Channels::observe(TargetId id, TargetHealth::Event event, base::Nanos now, std::vector<Answer>& answers,
                       std::vector<Turn>& turns) {
  const TargetHealth::Action action = channels_[id].health.step(event, now);
  switch (action) {
    case TargetHealth::Action::kNone:
      return;
    case TargetHealth::Action::kProbe:
      return probe(id, now);
    case TargetHealth::Action::kDied:
      give_up(id, answers);
      break;
    case TargetHealth::Action::kRevive:
      break;
  }
  turns.push_back({id, action});
}

void Channels::failed(TargetId id, base::Nanos now, std::vector<Answer>& answers, std::vector<Turn>& turns) {
  ++counters_.failures;
  observe(id, TargetHealth::Event::kFailure, now, answers, turns);
}

void Channels::note_unread(Channel& channel, const kv_target::ShardName& name) {
  if (std::ranges::find(channel.unread, name) != channel.unread.end()) return;
  channel.unread.push_back(name);
  if (channel.unread.size() > kUnreadMost) channel.unread.pop_front();
}

void Channels::probe(TargetId id, base::Nanos now) {
  Channel& channel = channels_[id];
  Outgoing outgoing;
  outgoing.request.name = kProbeName;
  if (!channel.unread.empty()) {
    outgoing.request.name = channel.unread.front();
    std::rotate(channel.unread.begin(), channel.unread.begin() + 1, channel.unread.end());
  }
  outgoing.request.buffer = channel.probe_buffer;
  const std::uint32_t slot = slot_for(id, outgoing, now);
  slots_[slot].probe = true;
  outgoing.request.tag = std::uint64_t{slots_[slot].generation} << 32 | slot;
  channel.target->submit({&outgoing.request, 1});
}

void Channels::ask_alive(TargetId id, base::Nanos now) {
  Channel& channel = channels_[id];
  if (!channel.health.usable() || (channel.asking && now - channel.asked < options_.request_timeout)) return;
  channel.asking = true;
  channel.asked = now;
  probe(id, now);
}

void Channels::complete(TargetId id, Completion& completion, base::Nanos now, std::vector<Answer>& answers,
                        std::vector<Turn>& turns) {
  const auto at = static_cast<std::uint32_t>(completion.tag);
  if (at >= slots_.size() || !slots_[at].used || slots_[at].target != id ||
      slots_[at].generation != completion.tag >> 32)
    return;                      // a target that completes a request twice
  const Slot slot = slots_[at];  // holds what is in its memory until the answer was told
  free_slot(at);
  const bool failed = completion.outcome == Outcome::kFailed;
  if (slot.probe) channels_[id].asking = false;
  if (slot.answered) {
    ++counters_.late;
  } else if (!slot.probe) {
    answers.push_back(
        {slot.ticket, slot.verb, id, completion.outcome, completion.bytes, std::move(completion.lent)});
    if (slot.verb == Verb::kRead && completion.outcome == Outcome::kDone && !channels_[id].immediate)
      channels_[id].latency.add(now - slot.since);
  }
  if (failed) ++counters_.failures;
  const bool read = slot.verb == Verb::kRead;
  if (read && failed && !slot.probe) note_unread(channels_[id], slot.name);
  if (read && completion.outcome == Outcome::kDone) channels_[id].unread.clear();
  // A disk that takes no more writes may still be read: whether the target lives is asked by a read.
  if (failed && !slot.probe && !read) return ask_alive(id, now);
  // One that cannot be read may still take writes, and know what it does not have: that proves nothing then.
  const bool tells = slot.probe || (read && completion.outcome != Outcome::kMissing);
  if (!failed && !tells && !channels_[id].unread.empty()) return;
  // A late answer proves life too, but of a dead target only that to a probe does.
  if (completion.outcome != Outcome::kCancelled && (slot.probe || channels_[id].health.usable()))
    observe(id, failed ? TargetHealth::Event::kFailure : TargetHealth::Event::kAnswer, now, answers, turns);
}

void Channels::check_time(base::Nanos now, std::vector<Answer>& answers, std::vector<Turn>& turns) {
  if (now < next_check_) return;
  next_check_ = now + options_.request_timeout / 8;
  for (std::uint32_t at = 0; out_ > 0 && at < slots_.size(); ++at) {
    const Slot& slot = slots_[at];
    if (!slot.used || slot.answered || slot.probe || now - slot.since < options_.request_timeout) continue;
    slots_[at].answered = true;
    ++counters_.timeouts;
    answers.push_back({slot.ticket, slot.verb, slot.target, Outcome::kFailed, 0});
    if (slot.verb == Verb::kRead) note_unread(channels_[slot.target], slot.name);
    channels_[slot.target].target->cancel(std::uint64_t{slot.generation} << 32 | at);
    observe(slot.target, TargetHealth::Event::kFailure, now, answers, turns);
  }
}

void Channels::forgive_standstill(base::Nanos now) {
  // `next_check_` wakes the owner twice as often while anything is out. Of a longer gap a part counts, so
  // that silent targets are found by an owner that polls too seldom, too.
  const base::Nanos stood = now - last_poll_ - options_.request_timeout / 4;
  if (stood > base::Nanos{0} && out_ > 0) {
    for (Slot& slot : slots_)
      if (slot.used && slot.since <= last_poll_) slot.since += stood;
  }
  last_poll_ = now;
}

bool Channels::poll(base::Nanos now, std::vector<Answer>& answers, std::vector<Turn>& turns) {
  forgive_standstill(now);
  const std::size_t before = answers.size() + turns.size();
  answers.insert(answers.end(), refused_.begin(), refused_.end());
  refused_.clear();
  for (TargetId id = 0; id < channels_.size(); ++id) {
    completed_.clear();
    if (channels_[id].target->poll(completed_) == 0) continue;
    for (Completion& completion : completed_) complete(id, completion, now, answers, turns);
  }
  check_time(now, answers, turns);
  for (TargetId id = 0; id < channels_.size(); ++id)
    if (now >= channels_[id].health.wake()) observe(id, TargetHealth::Event::kTime, now, answers, turns);
  return answers.size() + turns.size() > before;
}

void Channels::replace(TargetId id, std::unique_ptr<kv_target::Target> target, std::vector<Answer>& answers) {
  give_up(id, answers);
  channels_[id].target = std::move(target);  // the old one ends here and lets go of all memory
  for (std::uint32_t at = 0; at < slots_.size(); ++at)
    if (slots_[at].used && slots_[at].target == id) free_slot(at);
  channels_[id].health = TargetHealth(options_.health);
  channels_[id].latency = {};
  channels_[id].asking = false;
  channels_[id].unread.clear();
  open(channels_[id]);
}

base::Nanos Channels::next_wake() const {
  base::Nanos wake = out_ > 0 ? next_check_ : base::kForever;
  for (const Channel& channel : channels_) wake = std::min(wake, channel.health.wake());
  return wake;
}

}  // namespace trimtab::kv_store
