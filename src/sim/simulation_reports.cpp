// How ranks' words reach the machine: tokens at once, loads late, and some never.
#include <algorithm>

#include "sim/simulation.h"

namespace trimtab::sim {

using model::Role;

/// Called for each event before the machine has it.
void Simulation::hear(cluster::Event& event) {
  if (placers_ != nullptr) {
    if (const auto* preempted = std::get_if<cluster::Preempted>(&event))
      placers_->ended_there(preempted->id, queue_.now());
  }
  auto* stepped = std::get_if<cluster::DecodeStepped>(&event);
  const model::ReportModel& reports = scenario_.reports;
  if (stepped == nullptr || stepped->running < 0 || stepped->load_age.value > 0) return;
  if (placers_ == nullptr && reports.delay.value == 0 && reports.delay_steps == 0 && reports.loss == 0)
    return;
  cluster::DecodeStepped load;
  load.from = stepped->from;
  load.step = stepped->step;
  load.actual = stepped->actual;
  load.running = stepped->running;
  load.kv = stepped->kv;
  load.blocks_free = stepped->blocks_free;
  const DecodeGroup& from = decode_[load.from.engine.value];
  const auto steps = static_cast<std::int64_t>(std::max<std::uint64_t>(from.steps(), 1));
  load.load_age = reports.delay + Nanos{from.busy().value / steps * reports.delay_steps};
  stepped->running = -1;
  if (reports.loss > 0 && report_losses_.uniform() < reports.loss) {
    ++result_.faults.reports_lost;
    return;
  }
  std::uint32_t at = 0;
  if (reports_free_.empty()) {
    at = static_cast<std::uint32_t>(reports_.size());
    reports_.emplace_back();
    reports_of_.emplace_back();
  } else {
    at = reports_free_.back();
    reports_free_.pop_back();
  }
  reports_of_[at] = members_[member(Role::kDecode, load.from.engine.value, 0)].version;
  reports_[at] = std::move(load);
  queue_.after(reports_[at].load_age, EventKind::kLoadReport, at);
}

void Simulation::load_report(std::uint32_t at) {
  reports_free_.push_back(at);
  cluster::DecodeStepped load = std::move(reports_[at]);
  const Member& group = members_[member(Role::kDecode, load.from.engine.value, 0)];
  // Words of a connection that has ended are not heard.
  if (!group.there || group.version != reports_of_[at]) return;
  if (placers_ != nullptr) {
    policy::DecodeReport report;
    report.rank = load.from;
    report.running = load.running;
    report.kv = load.kv;
    report.as_of = queue_.now() - load.load_age;
    placers_->reported(report);
  }
  if (load.load_age.value == 0) load.load_age = Nanos{1};  // this one is not on its way any more
  tell(std::move(load));
}

}  // namespace trimtab::sim
