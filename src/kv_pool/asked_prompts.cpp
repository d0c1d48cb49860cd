#include "kv_pool/asked_prompts.h"

#include <algorithm>

namespace trimtab::kv_pool {

base::Nanos AskedPrompts::time(base::Nanos now) {
  last_time_ = std::max(now, last_time_ + base::Nanos{1});
  return last_time_;
}

std::uint64_t AskedPrompts::open(Prompt prompt, std::uint32_t here) {
  const std::uint64_t number = ++last_;
  keys_ += prompt.keys.size();
  for (std::uint32_t i = here; i < prompt.keys.size(); ++i) place_of_[prompt.keys[i]] = {number, i};
  // Answers are told of prompts that were wholly there too, and go on behind their last block.
  if (here > 0 && here == prompt.keys.size()) place_of_[prompt.keys.back()] = {number, here - 1};
  prompts_.emplace_back(number, std::move(prompt));
  while (keys_ > keys_most_ || prompts_.size() > keys_most_) forget_oldest();
  return number;
}

void AskedPrompts::forget_oldest() {
  const auto& [number, prompt] = prompts_.front();
  keys_ -= prompt.keys.size();
  for (const BlockKey key : prompt.keys) {
    const auto found = place_of_.find(key);
    if (found != place_of_.end() && found->second.prompt == number) place_of_.erase(found);
  }
  prompts_.pop_front();
}

AskedPrompts::Prompt* AskedPrompts::find(std::uint64_t number) {
  if (prompts_.empty() || number < prompts_.front().first || number > prompts_.back().first) return nullptr;
  return &prompts_[number - prompts_.front().first].second;
}

std::optional<AskedPrompts::Place> AskedPrompts::place(BlockKey key, std::optional<BlockKey> parent) {
  if (const auto found = place_of_.find(key); found != place_of_.end()) return found->second;
  if (!parent) return {};
  const auto before = place_of_.find(*parent);
  if (before == place_of_.end()) return {};
  const Place place{before->second.prompt, before->second.position + 1};
  Prompt* prompt = find(place.prompt);
  // Where the prompt goes on itself, this is another one's block.
  if (prompt == nullptr || place.position != prompt->keys.size()) return {};
  prompt->keys.push_back(key);
  ++keys_;
  place_of_[key] = place;
  return place;
}

}  // namespace trimtab::kv_pool
