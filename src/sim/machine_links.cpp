#include "sim/machine_links.h"

#include <algorithm>

namespace trimtab::sim {
namespace {

std::uint32_t machines_of(std::uint32_t ranks, std::uint32_t per_machine) {
  return (ranks + per_machine - 1) / per_machine;
}

}  // namespace

MachineLinks::MachineLinks(const model::Scenario& scenario)
    : bytes_per_s_(scenario.network.machine_bytes_per_s),
      ranks_(std::max(scenario.network.machine_ranks, 1U)),
      prefill_machines_(machines_of(scenario.cluster.prefill.ranks, ranks_)),
      decode_machines_(machines_of(scenario.cluster.decode.ranks, ranks_)),
      decode_first_(std::size_t{scenario.cluster.prefill.engines} * prefill_machines_) {
  if (modelled())
    links_.resize(decode_first_ + std::size_t{scenario.cluster.decode.groups} * decode_machines_);
}

void MachineLinks::take(Link& link, Nanos from, double bytes) const {
  const Nanos span = span_of(bytes);
  link.free = std::max(link.free, from) + span;
  link.busy += span;
  link.bytes += bytes;
}

MachineLinks::Transfer MachineLinks::read(model::RankId to, double bytes, Nanos now) {
  Link& link = prefill(to);
  const Nanos begins = std::max(link.free, now);
  take(link, begins, bytes);
  wait_.add(begins - now);
  return {begins, link.free};
}

MachineLinks::Transfer MachineLinks::hand_over(model::RankId from, model::RankId to, double bytes,
                                               Nanos now) {
  Link &sender = prefill(from), &receiver = decode(to);
  const Nanos begins = std::max({sender.free, receiver.free, now});
  take(sender, begins, bytes);
  take(receiver, begins, bytes);
  wait_.add(begins - now);
  return {begins, sender.free};
}

void MachineLinks::sent_earlier(model::RankId from, double bytes, Nanos now) {
  take(prefill(from), now, bytes);
}

void MachineLinks::received_earlier(model::RankId to, double bytes, Nanos now) {
  take(decode(to), now, bytes);
}

NetworkOutcome MachineLinks::outcome(Nanos span) const {
  NetworkOutcome out;
  const double seconds = std::max(base::to_seconds(span), 1e-9);
  for (const Link& link : links_) {
    out.machine_bytes.push_back(link.bytes);
    out.machine_busy.push_back(base::to_seconds(link.busy) / seconds);
  }
  out.prefill_machines = modelled() ? decode_first_ : 0;
  out.wait = wait_;
  return out;
}

}  // namespace trimtab::sim
