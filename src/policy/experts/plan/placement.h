#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/experts/plan/layer_loads.h"
#include "policy/experts/types.h"

namespace trimtab::experts {

/// A map under construction or search, with what makes a change of it cheap to judge. The smooth objective is
/// Q = sum over ranks and steps of (load - mean load)^2. With R_g the loads of rank g over the steps and w_e
/// those of expert e, `products[g][e]` = <R_g - mean, w_e>; copies share a load evenly.
class Placement {
 public:
  static constexpr float kForbidden = 1e30F;

  /// All slots empty; `copies`: how many each expert will have. Keeps references to its arguments.
  void reset(const Shape& shape, const LayerLoads& loads, std::span<const std::int32_t> copies);
  /// Every copy that a rank holds without having held the expert in `before` costs `price`, in units of Q;
  /// call after reset, before any slot is filled.
  void set_prices(std::span<const std::int32_t> before, float price);
  /// Puts a whole legal map in force.
  void set_map(std::span<const std::int32_t> map);

  std::span<const std::int32_t> map() const { return map_; }
  std::int32_t experts_padded() const { return padded_; }
  std::int32_t copies(std::int32_t expert) const { return copies_[static_cast<std::size_t>(expert)]; }
  float share(std::int32_t expert) const { return shares_[static_cast<std::size_t>(expert)]; }
  const float* shares() const { return shares_.data(); }
  const float* products(std::int32_t rank) const { return products_.data() + row(rank); }
  float product(std::int32_t rank, std::int32_t expert) const { return products(rank)[expert]; }
  float gram(std::int32_t a, std::int32_t b) const { return loads_->gram_row(a)[b]; }
  const float* gram_row(std::int32_t expert) const { return loads_->gram_row(expert); }
  bool holds(std::int32_t rank, std::int32_t expert) const {
    return penalties_[row(rank) + static_cast<std::size_t>(expert)] == kForbidden;
  }
  /// What the rank pays to take each expert: its price, or kForbidden when it holds the expert.
  const float* penalties(std::int32_t rank) const { return penalties_.data() + row(rank); }
  /// What a copy on the rank costs: 0 where the expert was before.
  float price(std::int32_t rank, std::int32_t expert) const {
    return prices_.empty() ? 0.0F : prices_[row(rank) + static_cast<std::size_t>(expert)];
  }
  std::int32_t free_slots(std::int32_t rank) const { return free_[static_cast<std::size_t>(rank)]; }
  /// Q in the units of the Gram matrix, from the products.
  double square_sum() const;

  /// Puts an expert in the first empty slot of a rank; returns the slot.
  std::int32_t add(std::int32_t rank, std::int32_t expert);
  /// Exchanges the experts of two slots on different ranks.
  void swap(std::int32_t slot_a, std::int32_t slot_b);
  /// Moves a slot's expert to another rank's first empty slot; returns that slot.
  std::int32_t move(std::int32_t slot, std::int32_t rank);
  /// The slot's expert loses a copy and `expert` gains one there; both shares change on all their ranks.
  void replace(std::int32_t slot, std::int32_t expert);
  /// What `replace` would add to Q.
  double replace_delta(std::int32_t slot, std::int32_t expert) const;

 private:
  std::size_t row(std::int32_t rank) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(padded_);
  }
  void add_load(std::int32_t rank, std::int32_t expert, float factor);
  void hold(std::int32_t rank, std::int32_t expert, bool held);

  Shape shape_;
  const LayerLoads* loads_ = nullptr;
  std::int32_t padded_ = 0;
  SlotMap map_;                       // -1: empty
  std::vector<std::int32_t> copies_;  // [experts]
  std::vector<float> shares_;         // [experts_padded]: 1 / copies
  std::vector<std::int32_t> free_;    // [ranks]
  std::vector<float> products_;       // [ranks, experts_padded]
  std::vector<float> prices_;         // [ranks, experts_padded], or empty: all 0
  std::vector<float> penalties_;      // [ranks, experts_padded]
};

}  // namespace trimtab::experts
