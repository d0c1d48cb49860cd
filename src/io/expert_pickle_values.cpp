#include "io/expert_pickle.h"
#include "io/expert_pickle_names.h"

namespace trimtab::io {

const PickledValues::Node* PickledValues::find(Node dict, std::string_view key) const {
  if (kind(dict) != PickledValues::Kind::kDict) return nullptr;
  const auto& pairs = lists_[index(dict)];
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (kind(pairs[i]) == PickledValues::Kind::kText && text(pairs[i]) == key) return &pairs[i + 1];
  }
  return nullptr;
}

std::vector<std::string> PickledValues::keys(Node dict) const {
  std::vector<std::string> out;
  if (kind(dict) != PickledValues::Kind::kDict) return out;
  const auto pairs = items(dict);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (kind(pairs[i]) == PickledValues::Kind::kText) out.push_back(printable(text(pairs[i])));
  }
  return out;
}

}  // namespace trimtab::io
