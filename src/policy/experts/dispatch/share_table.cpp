#include "policy/experts/dispatch/share_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace trimtab::experts {
namespace {

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/experts");
}

}  // namespace

base::Result<ShareTable> ShareTable::make(const Shape& shape, std::span<const std::int32_t> map,
                                          std::int32_t copies_max, std::int32_t parts) {
  TRIMTAB_TRY(check(shape, map, /*distinct=*/false));
  if (parts < 2 || parts > kPartsMax || !std::has_single_bit(static_cast<std::uint32_t>(parts))) {
    return bad(fmt::format("shares in {} parts: use a power of two from 2 to {}", parts, kPartsMax));
  }
  const std::vector<std::int32_t> copies = copies_of(shape, map);
  const std::int32_t most = *std::ranges::max_element(copies);
  if (copies_max != 0 && copies_max < most) {
    return bad(
        fmt::format("{} columns for an expert with {} copies: use at least {}", copies_max, most, most));
  }
  ShareTable table;
  table.shape_ = shape;
  table.parts_ = parts;
  table.copies_max_ = copies_max == 0 ? most : copies_max;
  table.first_.assign(1, 0);
  for (const std::int32_t count : copies) table.first_.push_back(table.first_.back() + count);
  table.slots_.resize(map.size());
  table.column_.resize(map.size());
  std::vector<std::int32_t> next(copies.size());
  for (std::int32_t slot = 0; slot < shape.slots; ++slot) {
    const std::size_t expert = index(map[index(slot)]);
    table.column_[index(slot)] = next[expert];
    table.slots_[index(table.first_[expert] + next[expert]++)] = slot;
  }
  table.units_.resize(index(most));
  table.remainders_.resize(index(most));
  table.table_.assign(copies.size() * index(table.copies_max_), 0);
  ShareFlow flow;
  flow.reset(shape, map);
  const std::vector<std::int64_t> alike(copies.size(), 1);
  flow.load(alike);
  flow.even();
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    table.table_[index(expert) * index(table.copies_max_)] = static_cast<std::uint16_t>(parts);
  }
  table.set(flow);
  return table;
}

std::span<const std::int32_t> ShareTable::slots_of(std::int32_t expert) const {
  const std::int32_t first = first_[index(expert)];
  return {slots_.data() + first, index(first_[index(expert) + 1] - first)};
}

void ShareTable::set(const ShareFlow& flow) {
  TRIMTAB_CHECK(flow.map().size() == slots_.size() && flow.shape().experts == shape_.experts);
  for (const std::int32_t expert : flow.replicated()) {
    const std::int32_t hosts = flow.hosts(expert);
    std::int32_t slot = flow.first_slot(expert);
    for (std::int32_t i = 0; i < hosts; ++i, slot = flow.next_slot(slot)) {
      units_[index(i)] = flow.slot_units()[index(slot)];
    }
    set_row(flow, expert, std::span(units_).first(index(hosts)));
  }
}

void ShareTable::set_row(const ShareFlow& flow, std::int32_t expert, std::span<const std::int64_t> units) {
  std::int64_t whole = 0;
  for (const std::int64_t part : units) whole += part;
  const std::int32_t hosts = flow.hosts(expert), first = flow.first_slot(expert);
  TRIMTAB_CHECK(units.size() == index(hosts));
  std::uint16_t* row = table_.data() + index(expert) * index(copies_max_);
  std::int32_t left = parts_, slot = first;
  for (std::int32_t i = 0; i < hosts; ++i, slot = flow.next_slot(slot)) {
    const std::int32_t column = column_[index(slot)];
    TRIMTAB_CHECK(slots_[index(first_[index(expert)] + column)] == slot, "a flow of another map");
    // An expert without tokens is split evenly, for those that come all the same.
    const std::int64_t scaled = whole > 0 ? units[index(i)] * parts_ : parts_;
    const std::int64_t divisor = whole > 0 ? whole : hosts;
    const std::int64_t part = scaled / divisor;
    row[column] = static_cast<std::uint16_t>(part);
    left -= static_cast<std::int32_t>(part);
    remainders_[index(i)] = {part * divisor - scaled, slot};
  }
  // Fewer parts are left than there are copies. Negative remainders, so that the largest comes first and a
  // tie goes to the lower slot.
  if (left == 0) return;
  const auto end = remainders_.begin() + hosts;
  std::partial_sort(remainders_.begin(), remainders_.begin() + left, end);
  for (std::int32_t i = 0; i < left; ++i) ++row[column_[index(remainders_[index(i)].second)]];
}

std::int32_t ShareTable::slot_of(std::int32_t expert, std::int32_t rank, std::int64_t choice,
                                 std::int64_t tokens) const {
  TRIMTAB_CHECK(choice >= 0 && choice < tokens && tokens <= kTokensMax);
  const std::span<const std::uint16_t> row = parts_of(expert);
  const std::span<const std::int32_t> slots = slots_of(expert);
  const std::uint32_t phase = share_phase(rank, expert);
  std::int32_t part = 0;
  for (std::size_t k = 0; k < slots.size(); ++k) {
    part += row[k];
    if (row[k] > 0 && choice < choices_below(tokens, part, parts_, phase)) return slots[k];
  }
  TRIMTAB_CHECK(false, "the parts of an expert add up to the whole");
}

void ShareTable::split(std::int32_t expert, std::int32_t rank, std::int64_t tokens,
                       std::span<std::int64_t> out) const {
  TRIMTAB_CHECK(tokens >= 0 && tokens <= kTokensMax && out.size() >= index(copies_max_));
  const std::span<const std::uint16_t> row = parts_of(expert);
  const std::uint32_t phase = share_phase(rank, expert);
  std::int32_t part = 0;
  std::int64_t before = 0;
  for (std::size_t k = 0; k < row.size(); ++k) {
    part += row[k];
    const std::int64_t below = row[k] > 0 ? choices_below(tokens, part, parts_, phase) : before;
    out[k] = below - before;
    before = below;
  }
}

}  // namespace trimtab::experts
