#include "policy/experts/moves/move_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace trimtab::experts {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

/// The batch under way and the state between batches.
class Orderer {
 public:
  Orderer(const MoveOptions& options, const MoveCosts& costs, std::vector<PendingCopy> copies, MovePlan& plan)
      : options_(options), costs_(costs), copies_(std::move(copies)), plan_(plan) {
    const auto pairs = at(plan_.hosts) * at(plan_.experts);
    valid_.resize(pairs);
    reads_.resize(pairs);
    in_slots_.resize(at(plan_.experts));
    content_ = plan_.before;
    busy_.resize(content_.size());
    staged_.assign(copies_.size(), Place{});
    for (std::int32_t place = 0; place < places(); ++place) {
      if (content_[at(place)] < 0) continue;
      ++valid_[pair(host_of(place), content_[at(place)])];
      ++in_slots_[at(content_[at(place)])];
    }
    for (const PendingCopy& copy : copies_) {
      if (copy.source >= 0) ++reads_[pair(copy.source, copy.expert)];
    }
    link_left_.resize(at(plan_.hosts));
    times_.resize(at(plan_.hosts));
    limit_ns_ = options.budget.stall_ns;
    if (limit_ns_ > 0) limit_ns_ = std::max({limit_ns_, costs.link_ns, costs.node_link_ns, costs.local_ns});
  }

  base::Status run() {
    std::vector<std::int32_t> pending(copies_.size());
    for (std::size_t i = 0; i < pending.size(); ++i) pending[i] = static_cast<std::int32_t>(i);
    committed_ = !options_.keep_old_map;
    while (!pending.empty()) {
      if (!committed_ && std::ranges::none_of(pending, [&](std::int32_t i) { return over_link(i); })) {
        committed_ = true;
        plan_.commit_batch = static_cast<std::int32_t>(plan_.batches.size());
      }
      open_batch(pending);
      std::vector<std::int32_t> left;
      for (const std::int32_t i : pending) {
        if (!place_directly(i)) left.push_back(i);
      }
      for (const std::int32_t i : left) {
        if (over_link(i)) stage(i);
      }
      if (committed_) stage_locals(left);
      if (batch_.empty()) return stuck(left.front());
      close_batch();
      pending = std::move(left);
    }
    finish();
    return {};
  }

 private:
  std::int32_t places() const { return plan_.hosts * plan_.places_per_host(); }
  std::int32_t host_of(std::int32_t place) const { return place / plan_.places_per_host(); }
  std::int32_t index(Place place) const { return place.host * plan_.places_per_host() + place.slot; }
  Place place_of(std::int32_t i) const { return {host_of(i), i % plan_.places_per_host()}; }
  std::size_t pair(std::int32_t host, std::int32_t expert) const {
    return at(host) * at(plan_.experts) + at(expert);
  }
  bool staged(std::int32_t i) const { return staged_[at(i)].host >= 0; }
  /// Still to cross a link, or to come from storage.
  bool over_link(std::int32_t i) const {
    return !staged(i) && copies_[at(i)].source != copies_[at(i)].to.host;
  }

  /// Local copies first, then the hosts with most left to do: they end last.
  void open_batch(std::vector<std::int32_t>& pending) {
    std::fill(link_left_.begin(), link_left_.end(), 0);
    for (const std::int32_t i : pending) {
      if (!over_link(i)) continue;
      ++link_left_[at(copies_[at(i)].to.host)];
      if (copies_[at(i)].source >= 0) ++link_left_[at(copies_[at(i)].source)];
    }
    const auto rank_of = [&](std::int32_t i) {
      const PendingCopy& copy = copies_[at(i)];
      if (!over_link(i)) return std::int64_t{0};
      if (copy.source < 0) return std::int64_t{1};  // an expert that nobody has comes first
      return 2 + std::int64_t{places()} * 2 -
             std::max(link_left_[at(copy.to.host)], link_left_[at(copy.source)]);
    };
    std::vector<std::pair<std::int64_t, std::int32_t>> order;
    order.reserve(pending.size());
    for (const std::int32_t i : pending) order.emplace_back(rank_of(i), i);
    std::ranges::sort(order);
    for (std::size_t k = 0; k < order.size(); ++k) pending[k] = order[k].second;
    std::fill(busy_.begin(), busy_.end(), false);
    std::fill(times_.begin(), times_.end(), HostTime{});
    freed_.clear();
  }

  /// A valid copy on the source host: a slot rather than staging, so that staging is free again early.
  std::int32_t find_source(std::int32_t i) const {
    const PendingCopy& copy = copies_[at(i)];
    if (staged(i)) return index(staged_[at(i)]);
    if (valid_[pair(copy.source, copy.expert)] == 0) return -1;
    const std::int32_t first = copy.source * plan_.places_per_host();
    for (std::int32_t place = first; place < first + plan_.places_per_host(); ++place) {
      if (content_[at(place)] == copy.expert) return place;
    }
    TRIMTAB_CHECK(false, "a valid copy is in some place");
    return -1;
  }

  /// Books a copy's time, or leaves all as it was when a host would work longer than the limit.
  bool book(std::int32_t from, std::int32_t to) {
    const std::int64_t ns = from >= 0 && plan_.same_node(from, to) ? costs_.node_link_ns : costs_.link_ns;
    const HostTime add_to = from == to ? HostTime{0, 0, costs_.local_ns} : HostTime{0, ns, 0};
    const HostTime add_from = from == to ? HostTime{} : HostTime{ns, 0, 0};
    const auto fits = [&](std::int32_t host, const HostTime& add) {
      HostTime together = times_[at(host)];
      together += add;
      return limit_ns_ == 0 || together.ns() <= limit_ns_;
    };
    if (!fits(to, add_to) || (from >= 0 && !fits(from, add_from))) return false;
    times_[at(to)] += add_to;
    if (from >= 0) times_[at(from)] += add_from;
    return true;
  }

  /// What lies there is not needed from this host any more, now or in this batch.
  bool writable(std::int32_t place) const {
    if (busy_[at(place)]) return false;
    if (!committed_ && plan_.before[at(place)] >= 0) return false;
    const std::int32_t expert = content_[at(place)];
    if (expert < 0) return true;
    const std::size_t here = pair(host_of(place), expert);
    return reads_[here] == 0 || valid_[here] > 1;
  }

  void retire(std::int32_t place) {
    const std::int32_t expert = content_[at(place)];
    if (expert < 0) return;
    content_[at(place)] = -1;
    --valid_[pair(host_of(place), expert)];
    if (place % plan_.places_per_host() >= plan_.width) return;
    --in_slots_[at(expert)];
    touched_.push_back(expert);
  }

  /// Puts copy i, to place `to`, into the batch if its source and time are there.
  bool emit(std::int32_t i, std::int32_t to) {
    const PendingCopy& copy = copies_[at(i)];
    const bool reload = copy.source < 0 && !staged(i);
    const std::int32_t from = reload ? -1 : find_source(i);
    if (!reload && from < 0) return false;
    const std::int32_t from_host = reload ? -1 : host_of(from);
    if (!book(from_host, copy.to.host)) return false;
    retire(to);
    busy_[at(to)] = true;
    if (!reload) {
      busy_[at(from)] = true;
      --reads_[pair(from_host, copy.expert)];
    }
    const MoveKind kind = reload                      ? MoveKind::kReload
                          : from_host == copy.to.host ? MoveKind::kLocal
                                                      : MoveKind::kSend;
    batch_.push_back({kind, copy.expert, reload ? Place{} : place_of(from), place_of(to)});
    return true;
  }

  bool place_directly(std::int32_t i) {
    const std::int32_t to = index(copies_[at(i)].to);
    if (!committed_ && !over_link(i)) return false;
    if (!writable(to) || !emit(i, to)) return false;
    if (staged(i)) freed_.push_back(index(staged_[at(i)]));
    return true;
  }

  bool stage(std::int32_t i) {
    const std::int32_t host = copies_[at(i)].to.host;
    const std::int32_t first = host * plan_.places_per_host() + plan_.width;
    for (std::int32_t place = first; place < first + plan_.staging; ++place) {
      if (content_[at(place)] >= 0 || busy_[at(place)]) continue;
      if (!emit(i, place)) return false;
      staged_[at(i)] = place_of(place);
      ++reads_[pair(host, copies_[at(i)].expert)];
      plan_.staging_used = std::max(plan_.staging_used, place - first + 1);
      return true;
    }
    return false;
  }

  /// Turns of slots inside a host: one copy steps aside, on each host where nothing else moves.
  void stage_locals(const std::vector<std::int32_t>& left) {
    for (const std::int32_t i : left) {
      const std::int32_t host = copies_[at(i)].to.host;
      const bool idle = std::ranges::none_of(batch_, [&](const Move& move) { return move.to.host == host; });
      if (idle && !staged(i) && !over_link(i)) stage(i);
    }
  }

  void close_batch() {
    // What was overwritten is gone while the batch runs, before its new copies count.
    for (const std::int32_t expert : touched_) {
      if (in_slots_[at(expert)] == 0) plan_.staging_serves = true;
    }
    touched_.clear();
    for (const std::int32_t place : freed_) retire(place);
    for (const Move& move : batch_) {
      content_[at(index(move.to))] = move.expert;
      ++valid_[pair(move.to.host, move.expert)];
      if (move.to.slot < plan_.width)
        ++in_slots_[at(move.expert)];
      else if (in_slots_[at(move.expert)] == 0)
        plan_.staging_serves = true;
    }
    for (const HostTime& host : times_) plan_.stall_ns = std::max(plan_.stall_ns, host.ns());
    plan_.batches.push_back(std::move(batch_));
    batch_.clear();
  }

  base::Status stuck(std::int32_t i) const {
    TRIMTAB_CHECK(plan_.staging == 0, "one staging slot is always enough");
    const PendingCopy& copy = copies_[at(i)];
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("rank {} cannot take expert {} into slot {}, whose expert others still need, without "
                    "a staging slot: give staging_slots 1 or more",
                    copy.to.host, copy.expert, copy.to.slot),
        "policy/experts/moves");
  }

  void finish() {
    if (!committed_) plan_.commit_batch = static_cast<std::int32_t>(plan_.batches.size());
    const std::int64_t allowed = options_.budget.stall_ns;
    if (allowed > 0 && plan_.stall_ns > allowed) {
      plan_.slices = static_cast<std::int32_t>((plan_.stall_ns + allowed - 1) / allowed);
      plan_.stall_ns = (plan_.stall_ns + plan_.slices - 1) / plan_.slices;
    }
  }

  const MoveOptions& options_;
  const MoveCosts& costs_;
  std::vector<PendingCopy> copies_;
  MovePlan& plan_;
  std::int64_t limit_ns_ = 0;
  bool committed_ = true;
  std::vector<std::int32_t> content_;        // [places]
  std::vector<bool> busy_;                   // read or written in this batch
  std::vector<std::int32_t> valid_, reads_;  // [hosts, experts]: valid places; pending copies that read them
  std::vector<std::int32_t> in_slots_;       // [experts]: valid places outside staging
  std::vector<Place> staged_;                // [copies]: where it waits
  std::vector<std::int32_t> link_left_;      // [hosts]
  std::vector<HostTime> times_;              // [hosts]: what the batch asks of each
  std::vector<std::int32_t> touched_;        // experts that lost a slot in this batch
  std::vector<std::int32_t> freed_;          // staging that is free after the batch
  MoveBatch batch_;
};

}  // namespace

base::Status order_copies(const MoveOptions& options, const MoveCosts& costs, std::vector<PendingCopy> copies,
                          MovePlan& plan) {
  return Orderer(options, costs, std::move(copies), plan).run();
}

}  // namespace trimtab::experts
