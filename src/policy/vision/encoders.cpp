#include "policy/vision/encoders.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::policy {
namespace {

std::string text(model::EncoderId id) {
  return "v" + std::to_string(id.machine.value) + "e" + std::to_string(id.encoder);
}

std::string long_text(model::EncoderId id) {
  return "vision machine " + std::to_string(id.machine.value) + " encoder " + std::to_string(id.encoder);
}

}  // namespace

const EncoderLedger::Machine* EncoderLedger::find(model::MachineId id) const {
  const auto at = std::lower_bound(machines_.begin(), machines_.end(), id,
                                   [](const Machine& m, model::MachineId wanted) { return m.id < wanted; });
  return at != machines_.end() && at->id == id ? &*at : nullptr;
}

EncoderLedger::Machine* EncoderLedger::find(model::MachineId id) {
  return const_cast<Machine*>(std::as_const(*this).find(id));
}

std::int64_t* EncoderLedger::in_flight(model::EncoderId encoder) {
  Machine* machine = find(encoder.machine);
  if (machine == nullptr) return nullptr;
  const auto at = std::lower_bound(machine->encoders.begin(), machine->encoders.end(), encoder.encoder);
  if (at == machine->encoders.end() || *at != encoder.encoder) return nullptr;
  return &machine->patches[static_cast<std::size_t>(at - machine->encoders.begin())];
}

void EncoderLedger::list_open() {
  open_.clear();
  for (std::size_t i = 0; i < machines_.size(); ++i)
    if (machines_[i].open) open_.push_back(i);
}

void EncoderLedger::add_encoder(model::EncoderId encoder) {
  TRIMTAB_CHECK(in_flight(encoder) == nullptr, "encoder " + text(encoder) + " was added twice");
  Machine* machine = find(encoder.machine);
  if (machine == nullptr) {
    const auto at = std::lower_bound(machines_.begin(), machines_.end(), encoder.machine,
                                     [](const Machine& m, model::MachineId wanted) { return m.id < wanted; });
    machine = &*machines_.insert(at, Machine{});
    machine->id = encoder.machine;
  }
  const auto at = std::lower_bound(machine->encoders.begin(), machine->encoders.end(), encoder.encoder);
  machine->patches.insert(machine->patches.begin() + (at - machine->encoders.begin()), 0);
  machine->encoders.insert(at, encoder.encoder);
  list_open();
}

std::vector<VisionJob> EncoderLedger::drop_jobs(model::EncoderId encoder) {
  std::vector<VisionJob> lost;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (job->second.encoder != encoder) {
      ++job;
      continue;
    }
    lost.push_back(job->first);
    job = jobs_.erase(job);
  }
  return lost;
}

std::vector<VisionJob> EncoderLedger::remove_encoder(model::EncoderId encoder) {
  TRIMTAB_CHECK(in_flight(encoder) != nullptr, "encoder " + text(encoder) + " is not known");
  Machine* machine = find(encoder.machine);
  const auto at = std::lower_bound(machine->encoders.begin(), machine->encoders.end(), encoder.encoder);
  machine->patches.erase(machine->patches.begin() + (at - machine->encoders.begin()));
  machine->encoders.erase(at);
  std::erase_if(machines_, [](const Machine& m) { return m.encoders.empty(); });
  list_open();
  return drop_jobs(encoder);
}

std::vector<VisionJob> EncoderLedger::machine_lost(model::MachineId id) {
  std::vector<VisionJob> lost;
  while (const Machine* machine = find(id)) {
    const std::vector<VisionJob> jobs = remove_encoder({id, machine->encoders.front()});
    lost.insert(lost.end(), jobs.begin(), jobs.end());
  }
  std::sort(lost.begin(), lost.end());
  return lost;
}

void EncoderLedger::set_open(model::MachineId id, bool open) {
  Machine* machine = find(id);
  TRIMTAB_CHECK(machine != nullptr, "vision machine " + std::to_string(id.value) + " is not known");
  machine->open = open;
  list_open();
}

void EncoderLedger::started(VisionJob job, model::EncoderId encoder, std::int64_t patches) {
  std::int64_t* load = in_flight(encoder);
  TRIMTAB_CHECK(load != nullptr, "encoder " + text(encoder) + " is not known");
  TRIMTAB_CHECK(patches >= 0, "patches " + std::to_string(patches));
  const bool is_new = jobs_.emplace(job, Job{encoder, patches}).second;
  TRIMTAB_CHECK(is_new, "image " + std::to_string(job.image) + " of request " +
                            std::to_string(job.request.value) + " is being encoded already");
  *load += patches;
}

bool EncoderLedger::finished(VisionJob job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return false;
  *in_flight(found->second.encoder) -= found->second.patches;
  jobs_.erase(found);
  return true;
}

std::int64_t EncoderLedger::patches_in_flight(model::EncoderId encoder) const {
  const std::int64_t* load = const_cast<EncoderLedger*>(this)->in_flight(encoder);
  TRIMTAB_CHECK(load != nullptr, "encoder " + text(encoder) + " is not known");
  return *load;
}

model::EncoderId EncoderLedger::lightest_of(const Machine& machine, VisionReason& reason) const {
  reason.machines = static_cast<std::uint32_t>(open_.size());
  reason.patches_in_flight = machine.patches;
  std::size_t first = 0, second = machine.patches.size();
  for (std::size_t i = 1; i < machine.patches.size(); ++i) {
    if (machine.patches[i] < machine.patches[first]) {
      second = first;
      first = i;
    } else if (second == machine.patches.size() || machine.patches[i] < machine.patches[second]) {
      second = i;
    }
  }
  if (second < machine.patches.size())
    reason.runner_up = model::EncoderId{machine.id, machine.encoders[second]};
  return {machine.id, machine.encoders[first]};
}

std::string describe(const VisionDecision& decision) {
  if (!decision.encoder) return "no vision machine takes work";
  std::string loads;
  for (const std::int64_t patches : decision.reason.patches_in_flight)
    loads += (loads.empty() ? "" : ", ") + std::to_string(patches);
  return long_text(*decision.encoder) + ": fewest patches in flight on its machine (" + loads +
         " by encoder), one machine of " + std::to_string(decision.reason.machines) +
         (decision.reason.runner_up ? "; runner-up " + long_text(*decision.reason.runner_up) : "");
}

}  // namespace trimtab::policy
