#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cluster/events.h"

namespace trimtab::cluster {

/// What was aborted and not answered yet. Until the Released comes (or the place is lost):
///  - what the place says about the request is of the past and is ignored;
///  - the request's room there still counts in the balancers' accounts;
///  - the request is not sent to that place again, so its messages of then and of now cannot be confused.
///
/// A prefill rank may still be writing KV into the decode rank's blocks when its request is aborted. Those
/// blocks must not go to anybody else before it has stopped, so the abort of the decode side waits for the
/// prefill side
/// (`then`).
class Releases {
 public:
  /// An Abort was sent to (or is taken as sent to) `place`; `then` is to be aborted afterwards. `then` counts
  /// as pending as well from now on.
  void expect(RequestId id, Place place, std::optional<Place> then = std::nullopt);

  /// The place let go. Returns false when nothing was pending. `next` is the place to abort now; it is
  /// pending already.
  bool released(RequestId id, Place place, std::optional<Place>& next);

  struct Settled {
    RequestId id;
    std::optional<Place> next;
  };
  /// The place is gone, and with it all that was pending there; by request.
  std::vector<Settled> lost(Place place);

  bool pending(RequestId id, Place place) const { return pending_.contains({place, id}); }
  bool pending(RequestId id, model::Role role) const;
  std::size_t size() const { return pending_.size(); }

 private:
  struct Entry {
    std::optional<Place> then;
    bool sent = true;  // false: waits for the prefill side
  };
  std::map<std::pair<Place, RequestId>, Entry> pending_;
  std::set<std::pair<RequestId, Place>> by_request_;
};

}  // namespace trimtab::cluster
