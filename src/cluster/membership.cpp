#include "cluster/membership.h"

#include <algorithm>

#include "base/check.h"

namespace trimtab::cluster {

using model::Role;

Membership::Membership(const model::ClusterConfig& config) : roles_(3), begins_{0} {
  const auto fill = [this](Role role, std::uint32_t engines, std::uint32_t ranks) {
    roles_[static_cast<std::size_t>(role)].assign(engines, Group{std::vector<Member>(ranks), false});
    begins_.push_back(begins_.back() + std::size_t{engines} * ranks);
    widths_.push_back(ranks);
  };
  fill(Role::kPrefill, config.prefill.engines, config.prefill.ranks);
  fill(Role::kDecode, config.decode.groups, config.decode.ranks);
  fill(Role::kVision, config.vision.machines, config.vision.encoders);
}

std::size_t Membership::index(Place place) const {
  const auto role = static_cast<std::size_t>(place.role);
  const std::size_t at = begins_[role] + place.engine.value * widths_[role] + place.rank;
  TRIMTAB_CHECK(place.rank < widths_[role] && at < begins_[role + 1],
                "a place that the configuration does not have");
  return at;
}

std::size_t Membership::places(Role role) const {
  const auto at = static_cast<std::size_t>(role);
  return begins_[at + 1] - begins_[at];
}

const Membership::Group* Membership::group(Role role, EngineId engine) const {
  const auto& all = groups(role);
  return engine.value < all.size() ? &all[engine.value] : nullptr;
}

const Membership::Member* Membership::member(Place place) const {
  const Group* found = group(place.role, place.engine);
  return found != nullptr && place.rank < found->members.size() ? &found->members[place.rank] : nullptr;
}

bool Membership::known(Place place) const { return member(place) != nullptr; }

bool Membership::join(Place place, std::int64_t blocks_total) {
  TRIMTAB_CHECK(known(place), "join of a place that the configuration does not have");
  auto& joined = roles_[static_cast<std::size_t>(place.role)][place.engine.value].members[place.rank];
  joined = {Presence::kJoined, blocks_total};
  return place.role == Role::kVision || serving(place.role, place.engine);
}

bool Membership::lose(Place place) {
  if (!known(place)) return false;
  auto& members = roles_[static_cast<std::size_t>(place.role)][place.engine.value].members;
  Member& lost = members[place.rank];
  const bool counted = lost.presence == Presence::kJoined;
  const bool served = serving(place.role, place.engine);
  lost = {};
  if (!counted) return false;  // an old incarnation that nobody relied on any more
  if (place.role == Role::kVision) return true;
  for (Member& peer : members) {
    if (peer.presence == Presence::kJoined) peer.presence = Presence::kOld;
  }
  return served;
}

void Membership::drain(Role role, EngineId engine, bool on) {
  auto& all = roles_[static_cast<std::size_t>(role)];
  if (engine.value < all.size()) all[engine.value].draining = on;
}

bool Membership::serving(Role role, EngineId engine) const {
  const Group* found = group(role, engine);
  if (found == nullptr) return false;
  const auto there = [](const Member& m) { return m.presence == Presence::kJoined; };
  return role == Role::kVision ? std::any_of(found->members.begin(), found->members.end(), there)
                               : std::all_of(found->members.begin(), found->members.end(), there);
}

bool Membership::draining(Role role, EngineId engine) const {
  const Group* found = group(role, engine);
  return found != nullptr && found->draining;
}

bool Membership::open(Role role, EngineId engine) const {
  return serving(role, engine) && !draining(role, engine);
}

bool Membership::open(Place place) const { return heard(place) && open(place.role, place.engine); }

bool Membership::heard(Place place) const {
  const Member* found = member(place);
  return found != nullptr && found->presence == Presence::kJoined;
}

std::int64_t Membership::blocks_total(Place place) const {
  const Member* found = member(place);
  return found != nullptr ? found->blocks_total : 0;
}

std::uint32_t Membership::engines(Role role) const { return static_cast<std::uint32_t>(groups(role).size()); }

std::uint32_t Membership::ranks(Role role) const {
  return groups(role).empty() ? 0 : static_cast<std::uint32_t>(groups(role).front().members.size());
}

bool Membership::complete() const {
  for (const auto& all : roles_) {
    for (const Group& one : all) {
      const auto there = [](const Member& m) { return m.presence == Presence::kJoined; };
      if (!std::all_of(one.members.begin(), one.members.end(), there)) return false;
    }
  }
  return true;
}

}  // namespace trimtab::cluster
