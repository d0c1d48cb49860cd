#include "policy/eviction/cells.h"

namespace trimtab::eviction {

void Cells::push(Slot slot, Cell cell, double worth, bool at_end) {
  if (slot >= links_.size()) links_.resize(std::size_t{slot} + 1);
  List& list = lists_[cell];
  if (list.oldest == kNoSlot) {
    list.worth = worth;
    by_worth_.emplace(worth, cell);
  }
  const Slot older = at_end ? kNoSlot : list.newest;
  const Slot newer = at_end ? list.oldest : kNoSlot;
  links_[slot] = {newer, older, cell};
  (older == kNoSlot ? list.oldest : links_[older].newer) = slot;
  (newer == kNoSlot ? list.newest : links_[newer].older) = slot;
}

void Cells::remove(Slot slot) {
  const Link gone = links_[slot];
  List& list = lists_[gone.cell];
  (gone.newer == kNoSlot ? list.newest : links_[gone.newer].older) = gone.older;
  (gone.older == kNoSlot ? list.oldest : links_[gone.older].newer) = gone.newer;
  links_[slot] = {};
  if (list.oldest == kNoSlot) by_worth_.erase({list.worth, gone.cell});
}

void Cells::reorder(const std::function<double(Cell)>& worth) {
  std::vector<Cell> cells;
  filled(cells);
  by_worth_.clear();
  for (const Cell cell : cells) {
    lists_[cell].worth = worth(cell);
    by_worth_.emplace(lists_[cell].worth, cell);
  }
}

}  // namespace trimtab::eviction
