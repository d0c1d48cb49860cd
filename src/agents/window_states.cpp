#include "agents/window_states.h"

#include <utility>

#include "kv_state/state_host.h"

namespace trimtab::agents {

namespace {

constexpr base::Nanos kPatience{500'000'000};

model::BlockKey key_of(const model::KvLayout& layout) {
  kv::RingShape ring;
  ring.layers = layout.window_layers;
  ring.ring_slots = layout.ring_slots;
  ring.window_tokens = layout.window_tokens;
  const std::int64_t rows = ring.layers * ring.ring_slots;
  ring.row_bytes = rows == 0 ? 0 : layout.state_bytes.value / rows;
  return kv::layout_key(ring, kv_state::kReferenceElement);
}

}  // namespace

WindowStates::WindowStates(const model::KvLayout& layout, kv::WindowMode mode,
                           std::function<void(std::function<void()>)> post)
    : layout_key_(key_of(layout)),
      look_back_blocks_(static_cast<std::uint32_t>(
          (layout.window_tokens * layout.window_layers + model::kBlockTokens - 1) / model::kBlockTokens + 1)),
      mode_(mode),
      post_(std::move(post)),
      thread_([this] { ask_loop(); }) {}

WindowStates::~WindowStates() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WindowStates::joined(const wire::StateHello& hello) {
  Machine& machine = machines_[hello.machine];
  machine = Machine{};
  machine.endpoint = {hello.host, hello.port};
  machine.epoch = hello.epoch;
  machine.wants_list = true;  // also when it lives on and only the entrypoint is new
  refresh();
}

void WindowStates::lost(std::uint32_t machine) {
  machines_.erase(machine);
  directory_.remove_machine(kv::HostId{machine});
}

void WindowStates::refresh() {
  for (auto& [number, machine] : machines_) {
    if (std::exchange(machine.asked, true)) continue;
    Question question;
    question.machine = number;
    question.endpoint = machine.endpoint;
    question.epoch = machine.epoch;
    const kv::HostId id{number};
    const auto stands = directory_.machine(id);
    if (machine.wants_list || !stands || stands->epoch != machine.epoch || directory_.needs_list(id)) {
      question.ticket = directory_.ask(id);
      if (!question.ticket) {
        machine.asked = false;  // the directory is full: this machine is not shown
        continue;
      }
    } else {
      question.sequence = stands->sequence;
    }
    const std::lock_guard lock(mutex_);
    questions_.push_back(std::move(question));
    changed_.notify_all();
  }
}

void WindowStates::ask_loop() {
  while (true) {
    Question question;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !questions_.empty(); });
      if (stopping_) return;
      question = std::move(questions_.front());
      questions_.pop_front();
    }
    const Answer answer = ask(question);
    post_([this, question, answer] { on_answer(question, answer); });
  }
}

WindowStates::Answer WindowStates::ask(const Question& question) {
  if (question.ticket) {
    const auto list = client_.list(question.endpoint, *question.ticket, kPatience);
    if (!list) return list.error();
    return *list;
  }
  const auto changes = client_.changes(question.endpoint, question.epoch, question.sequence, kPatience);
  if (!changes) return changes.error();
  return *changes;
}

void WindowStates::on_answer(const Question& question, const Answer& answer) {
  const auto found = machines_.find(question.machine);
  if (found == machines_.end() || found->second.epoch != question.epoch) return;  // died, or another life
  Machine& machine = found->second;
  machine.asked = false;
  const kv::HostId id{question.machine};
  if (const auto* delta = std::get_if<kv::SnapshotDelta>(&answer)) {
    if (delta->machine == id) directory_.apply(*delta);
  } else if (const auto* list = std::get_if<kv::SnapshotList>(&answer)) {
    if (list->machine == id) directory_.apply(*list);
    machine.wants_list = false;
  } else {
    // Changes that are too long ago; other errors say nothing but that it did not answer.
    machine.wants_list = machine.wants_list || std::get<base::Error>(answer).code == base::Code::kNotFound;
  }
}

std::vector<wire::StateOffer> WindowStates::offers(std::span<const model::BlockKey> keys) const {
  std::vector<wire::StateOffer> all;
  for (const std::uint32_t blocks : directory_.endpoints(keys, layout_key_, look_back_blocks_)) {
    wire::StateOffer offer;
    offer.blocks = blocks;
    for (const auto& holder : directory_.holders(kv::snapshot_name(keys, blocks, layout_key_))) {
      const auto machine = machines_.find(holder.machine.value);
      if (machine == machines_.end()) continue;
      offer.holders.push_back({holder.machine.value, holder.epoch, holder.sequence,
                               machine->second.endpoint.host, machine->second.endpoint.port});
    }
    if (!offer.holders.empty()) all.push_back(std::move(offer));
  }
  return all;
}

void WindowStates::withdraw(std::span<const model::BlockKey> keys, const wire::StateOffer& offer) {
  const kv::SnapshotName name = kv::snapshot_name(keys, offer.blocks, layout_key_);
  for (const wire::StateHolder& holder : offer.holders)
    directory_.withdraw(name, {kv::HostId{holder.machine}, holder.epoch, holder.sequence});
}

std::vector<WindowStates::MachineLine> WindowStates::machines() const {
  std::vector<MachineLine> lines;
  for (const auto& [number, machine] : machines_) {
    lines.push_back({number, kv_state::to_string(machine.endpoint), machine.epoch,
                     directory_.names_of(kv::HostId{number}).size()});
  }
  return lines;
}

}  // namespace trimtab::agents
