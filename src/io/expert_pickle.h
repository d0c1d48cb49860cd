#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/expert_array.h"

namespace trimtab::io {

/// A tensor that a pickle describes; its elements lie in the archive's entry `data/<storage>`.
struct PickledTensor {
  ElementType type = ElementType::kFloat32;
  std::string storage;
  std::int64_t storage_elements = 0;
  std::int64_t offset = 0;  // elements
  std::vector<std::int64_t> shape, stride;
};

/// The plain values of a pickle. Nodes name one another by index, so a list that contains itself is harmless.
class PickledValues {
 public:
  enum class Kind : std::uint8_t { kNone, kBool, kInt, kFloat, kText, kTuple, kList, kDict, kTensor, kOther };
  using Node = std::uint32_t;

  Node root() const { return root_; }
  Kind kind(Node node) const { return nodes_[node].kind; }
  std::int64_t integer(Node node) const { return nodes_[node].number; }
  const std::string& text(Node node) const { return texts_[index(node)]; }
  /// Items of a tuple or list; of a dict: key, value, key, value.
  std::span<const Node> items(Node node) const { return lists_[index(node)]; }
  const PickledTensor& tensor(Node node) const { return tensors_[index(node)]; }
  /// The value of a text key in a dict, or null.
  const Node* find(Node dict, std::string_view key) const;
  std::vector<std::string> keys(Node dict) const;

 private:
  friend class PickleMachine;
  struct Slot {
    Kind kind = Kind::kNone;
    std::int64_t number = 0;  // the integer, or the index in the side table
  };
  std::size_t index(Node node) const { return static_cast<std::size_t>(nodes_[node].number); }
  std::vector<Slot> nodes_;
  std::vector<std::string> texts_;
  std::vector<std::vector<Node>> lists_;
  std::vector<PickledTensor> tensors_;
  Node root_ = 0;
};

/// Reads the pickle of a `torch.save` file, protocols 2 to 5. It runs nothing: the only names that it accepts
/// are torch's tensor rebuilders, storage classes, types and sizes, and OrderedDict; any other name is an
/// error that says it (kUnsupported). Memory is proportional to the bytes. Errors also: an unknown opcode, a
/// stack that runs empty, a pickle cut short.
base::Result<PickledValues> read_pickle(std::span<const std::byte> bytes);

}  // namespace trimtab::io
