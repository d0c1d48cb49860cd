#include "io/expert_pickle_names.h"

#include <functional>
#include <map>

namespace trimtab::io {

std::optional<Global> global_of(const std::string& name) {
  using enum ElementType;
  static const std::map<std::string, Global, std::less<>> known = {
      {"collections OrderedDict", {Name::kOrderedDict, kFloat32}},
      {"torch Size", {Name::kSize, kFloat32}},
      {"torch._utils _rebuild_tensor", {Name::kRebuild, kFloat32}},
      {"torch._utils _rebuild_tensor_v2", {Name::kRebuild, kFloat32}},
      {"torch._utils _rebuild_tensor_v3", {Name::kRebuildTyped, kFloat32}},
      {"torch.storage UntypedStorage", {Name::kUntyped, kUint8}},
      {"torch FloatStorage", {Name::kTyped, kFloat32}},
      {"torch DoubleStorage", {Name::kTyped, kFloat64}},
      {"torch HalfStorage", {Name::kTyped, kFloat16}},
      {"torch BFloat16Storage", {Name::kTyped, kBfloat16}},
      {"torch LongStorage", {Name::kTyped, kInt64}},
      {"torch IntStorage", {Name::kTyped, kInt32}},
      {"torch ShortStorage", {Name::kTyped, kInt16}},
      {"torch CharStorage", {Name::kTyped, kInt8}},
      {"torch ByteStorage", {Name::kTyped, kUint8}},
      {"torch BoolStorage", {Name::kTyped, kBool}},
      {"torch float32", {Name::kTyped, kFloat32}},
      {"torch float64", {Name::kTyped, kFloat64}},
      {"torch float16", {Name::kTyped, kFloat16}},
      {"torch bfloat16", {Name::kTyped, kBfloat16}},
      {"torch int64", {Name::kTyped, kInt64}},
      {"torch int32", {Name::kTyped, kInt32}},
      {"torch int16", {Name::kTyped, kInt16}},
      {"torch int8", {Name::kTyped, kInt8}},
      {"torch uint8", {Name::kTyped, kUint8}},
      {"torch uint16", {Name::kTyped, kUint16}},
      {"torch uint32", {Name::kTyped, kUint32}},
      {"torch uint64", {Name::kTyped, kUint64}},
      {"torch bool", {Name::kTyped, kBool}},
  };
  const auto found = known.find(name);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, kPickleNameBytesMax));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

}  // namespace trimtab::io
