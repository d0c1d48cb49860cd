#include "policy/experts/moves/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace trimtab::experts {
namespace {

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
constexpr std::byte kGarbage{0xa5};

}  // namespace

MemoryExecutor::MemoryExecutor(const MovePlan& plan, ExpertBytes truth)
    : plan_(&plan), truth_(std::move(truth)), bytes_(plan.bytes_per_copy) {
  TRIMTAB_CHECK(bytes_ > 0, "an executor needs bytes_per_copy");
  memory_.assign(plan.before.size() * at(bytes_), kGarbage);
  for (std::int32_t host = 0; host < plan.hosts; ++host) {
    for (std::int32_t slot = 0; slot < plan.places_per_host(); ++slot) {
      const std::int32_t expert = plan.before[at(host) * at(plan.places_per_host()) + at(slot)];
      if (expert < 0) continue;
      const std::vector<std::byte> bytes = truth_(expert);
      TRIMTAB_CHECK(bytes.size() == at(bytes_), "an expert has bytes_per_copy bytes");
      std::ranges::copy(bytes, place({host, slot}).begin());
    }
  }
}

std::span<std::byte> MemoryExecutor::place(Place place) {
  const std::size_t index = at(place.host) * at(plan_->places_per_host()) + at(place.slot);
  return {memory_.data() + index * at(bytes_), at(bytes_)};
}

std::span<const std::byte> MemoryExecutor::place(Place place) const {
  const std::size_t index = at(place.host) * at(plan_->places_per_host()) + at(place.slot);
  return {memory_.data() + index * at(bytes_), at(bytes_)};
}

std::pair<std::int64_t, std::int64_t> MemoryExecutor::slice_bounds() const {
  // Slices of equal length, the last may be shorter.
  const std::int64_t length = (bytes_ + plan_->slices - 1) / plan_->slices;
  return {std::min(bytes_, position_.slice * length), std::min(bytes_, (position_.slice + 1) * length)};
}

void MemoryExecutor::copy_part(const Move& move, std::int64_t from, std::int64_t to) {
  const auto first = static_cast<std::ptrdiff_t>(from), last = static_cast<std::ptrdiff_t>(to);
  if (move.kind == MoveKind::kReload) {
    const std::vector<std::byte> bytes = truth_(move.expert);
    std::copy(bytes.begin() + first, bytes.begin() + last, place(move.to).begin() + first);
    return;
  }
  const std::span<const std::byte> source = place(move.from);
  std::copy(source.begin() + first, source.begin() + last, place(move.to).begin() + first);
}

void MemoryExecutor::run_slice() {
  TRIMTAB_CHECK(!done(), "nothing is left to move");
  const auto [from, to] = slice_bounds();
  for (const Move& move : plan_->batches[at(position_.round)]) copy_part(move, from, to);
  ++position_.slice;
  if (position_.slice == plan_->slices) position_ = {position_.round + 1, 0};
}

void MemoryExecutor::tear_slice(std::uint64_t done_moves) {
  TRIMTAB_CHECK(!done(), "nothing is left to move");
  const auto [from, to] = slice_bounds();
  const MoveBatch& batch = plan_->batches[at(position_.round)];
  bool cut = false;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (i < 64 && (done_moves >> i & 1) != 0) {
      copy_part(batch[i], from, to);
      continue;
    }
    const std::span<std::byte> target = place(batch[i].to).subspan(at(from), at(to - from));
    std::ranges::fill(target, kGarbage);
    if (!cut) copy_part(batch[i], from, from + (to - from) / 2);
    cut = true;
  }
}

void MemoryExecutor::run() {
  while (!done()) run_slice();
}

base::Status MemoryExecutor::prove(bool running) const {
  const std::vector<std::int32_t> valid =
      valid_places(*plan_, position_.round, running || position_.slice > 0);
  std::vector<bool> served(at(plan_->experts));
  for (std::int32_t host = 0; host < plan_->hosts; ++host) {
    for (std::int32_t slot = 0; slot < plan_->places_per_host(); ++slot) {
      const std::int32_t expert = valid[at(host) * at(plan_->places_per_host()) + at(slot)];
      if (expert < 0) continue;
      if (!std::ranges::equal(place({host, slot}), truth_(expert))) {
        return base::fail(base::Code::kDataLoss,
                          fmt::format("at batch {}, slice {}: host {}, slot {} does not hold expert {}",
                                      position_.round, position_.slice, host, slot, expert),
                          "policy/experts/moves");
      }
      served[at(expert)] = true;
    }
  }
  for (std::int32_t expert = 0; expert < plan_->experts; ++expert) {
    if (served[at(expert)]) continue;
    const bool lost = std::ranges::binary_search(plan_->reloaded, expert);
    if (!lost || done()) {
      return base::fail(base::Code::kDataLoss,
                        fmt::format("at batch {}, slice {}: expert {} has no valid place", position_.round,
                                    position_.slice, expert),
                        "policy/experts/moves");
    }
  }
  return {};
}

}  // namespace trimtab::experts
