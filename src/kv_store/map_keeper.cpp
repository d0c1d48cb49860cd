#include "kv_store/map_keeper.h"

#include <algorithm>

namespace trimtab::kv_store {

namespace {
constexpr base::Nanos kPause{500'000'000};
}

MapKeeper::MapKeeper(MapRecord record, std::uint32_t targets) { change(std::move(record), targets); }

void MapKeeper::change(MapRecord next, std::uint32_t targets) {
  record_ = std::move(next);
  checksum_ = record_.checksum();
  seats_.resize(targets);
  if (newer_ && !newer_->newer_than(record_)) newer_.reset();
}

void MapKeeper::doubt(TargetId id) {
  Seat& seat = seats_[id];
  seat.doubted = true;
  if (seat.state == Seat::State::kKnown) seat.state = Seat::State::kUnknown;
}

MapKeeper::Ask MapKeeper::next(TargetId id, base::Nanos now) {
  Seat& seat = seats_[id];
  if (seat.state == Seat::State::kAsked || now < seat.not_before ||
      record_.members[id].state == MapMember::State::kGone)
    return Ask::kNothing;
  if (seat.state == Seat::State::kKnown && (seat.keeps == checksum_ || newer_)) return Ask::kNothing;
  const Ask ask = seat.state == Seat::State::kUnknown ? Ask::kRead : Ask::kWrite;
  seat.state = Seat::State::kAsked;
  seat.doubted = false;
  return ask;
}

void MapKeeper::has(TargetId id, const MapRecord* found) {
  Seat& seat = seats_[id];
  seat.state = seat.doubted ? Seat::State::kUnknown : Seat::State::kKnown;
  seat.keeps = found != nullptr ? found->checksum() : 0;
  if (found != nullptr && found->newer_than(newer_ ? *newer_ : record_)) newer_ = *found;
}

void MapKeeper::wrote(TargetId id, std::uint64_t checksum) {
  Seat& seat = seats_[id];
  seat.state = seat.doubted ? Seat::State::kUnknown : Seat::State::kKnown;
  seat.keeps = checksum;
  seat.full = false;
}

void MapKeeper::failed(TargetId id, bool full, base::Nanos now) {
  Seat& seat = seats_[id];
  seat.state = Seat::State::kUnknown;  // a write that failed may be there
  seat.not_before = now + kPause;
  seat.full = full;
}

std::uint32_t MapKeeper::copies() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(seats_, [this](const Seat& seat) {
    return seat.state == Seat::State::kKnown && seat.keeps == checksum_;
  }));
}

bool MapKeeper::full() const {
  return std::ranges::any_of(seats_, [](const Seat& seat) { return seat.full; });
}

base::Nanos MapKeeper::wake(base::Nanos now) const {
  base::Nanos wake = base::kForever;
  for (const Seat& seat : seats_)
    if (seat.not_before > now) wake = std::min(wake, seat.not_before);
  return wake;
}

}  // namespace trimtab::kv_store
