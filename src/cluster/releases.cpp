#include "cluster/releases.h"

#include "base/check.h"

namespace trimtab::cluster {

void Releases::expect(RequestId id, Place place, std::optional<Place> then) {
  const bool fresh = pending_.emplace(std::pair{place, id}, Entry{then, true}).second;
  TRIMTAB_CHECK(fresh, "request " + std::to_string(id.value) + " is aborted twice at one place");
  by_request_.emplace(id, place);
  if (then) {
    TRIMTAB_CHECK(pending_.emplace(std::pair{*then, id}, Entry{std::nullopt, false}).second);
    by_request_.emplace(id, *then);
  }
}

bool Releases::released(RequestId id, Place place, std::optional<Place>& next) {
  next.reset();
  const auto found = pending_.find({place, id});
  // A Released that nobody asked for cannot settle an abort that was not sent yet.
  if (found == pending_.end() || !found->second.sent) return false;
  const std::optional<Place> then = found->second.then;
  pending_.erase(found);
  by_request_.erase({id, place});
  if (then) {
    // The decode side may have been lost meanwhile: then there is nothing left to abort.
    if (const auto waiting = pending_.find({*then, id}); waiting != pending_.end()) {
      waiting->second.sent = true;
      next = then;
    }
  }
  return true;
}

std::vector<Releases::Settled> Releases::lost(Place place) {
  std::vector<RequestId> ids;
  for (auto entry = pending_.lower_bound({place, RequestId{0}});
       entry != pending_.end() && entry->first.first == place; ++entry) {
    ids.push_back(entry->first.second);
  }
  std::vector<Settled> settled;
  for (const RequestId id : ids) {
    Settled one{id, std::nullopt};
    // A lost place has let go of everything, whether it was told to or not.
    pending_.at({place, id}).sent = true;
    released(id, place, one.next);
    settled.push_back(one);
  }
  return settled;
}

bool Releases::pending(RequestId id, model::Role role) const {
  const auto found = by_request_.lower_bound({id, Place{role, EngineId{0}, 0}});
  return found != by_request_.end() && found->first == id && found->second.role == role;
}

}  // namespace trimtab::cluster
