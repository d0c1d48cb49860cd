#include "gguf/directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace trimtab::gguf {

namespace {

constexpr std::string_view kOrigin = "gguf";
constexpr std::uint64_t kDimsMax = 4;
constexpr std::uint32_t kAlignmentDefault = 32;

tl::unexpected<base::Error> data_loss(std::string message) {
  return base::fail(base::Code::kDataLoss, std::move(message), std::string(kOrigin));
}

/// Bytes of one element of a fixed size; 0 for strings, arrays and unknown numbers.
std::size_t element_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
      return 8;
    default:
      return 0;
  }
}

/// Reads forward through the header; every failure says where the file ends and inside of what.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> file) : file_(file) {}

  base::Result<std::span<const std::byte>> take(std::uint64_t bytes, std::string_view what) {
    if (bytes > file_.size() - at_) {
      return data_loss(
          fmt::format("the file is truncated: {} at byte {} needs {} bytes and the file ends at {}", what,
                      at_, bytes, file_.size()));
    }
    const auto taken = file_.subspan(at_, bytes);
    at_ += bytes;
    return taken;
  }
  template <class T>
  base::Result<T> number(std::string_view what) {
    const auto bytes = take(sizeof(T), what);
    if (!bytes) return tl::unexpected(bytes.error());
    T value;
    std::memcpy(&value, bytes->data(), sizeof value);
    return value;
  }
  base::Result<std::string_view> string(std::string_view what) {
    const auto size = number<std::uint64_t>(what);
    if (!size) return tl::unexpected(size.error());
    const auto bytes = take(*size, what);
    if (!bytes) return tl::unexpected(bytes.error());
    return std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }
  std::size_t at() const { return at_; }
  std::span<const std::byte> from(std::size_t begin) const { return file_.subspan(begin, at_ - begin); }
  std::uint64_t left() const { return file_.size() - at_; }

 private:
  std::span<const std::byte> file_;
  std::size_t at_ = 0;
};

base::Result<Value> read_value(Cursor& cursor, std::string_view key) {
  auto number = cursor.number<std::uint32_t>(key);
  if (!number) return tl::unexpected(number.error());
  Value value;
  value.type = static_cast<ValueType>(*number);
  if (value.type == ValueType::kArray) {
    value.is_array = true;
    number = cursor.number<std::uint32_t>(key);
    if (!number) return tl::unexpected(number.error());
    const auto count = cursor.number<std::uint64_t>(key);
    if (!count) return tl::unexpected(count.error());
    value.type = static_cast<ValueType>(*number);
    value.count = *count;
  }
  const std::size_t begin = cursor.at();
  if (value.type == ValueType::kString) {
    for (std::uint64_t i = 0; i < value.count; ++i) TRIMTAB_TRY(cursor.string(key));
  } else {
    const std::size_t size = element_bytes(value.type);
    if (size == 0) return data_loss(fmt::format("key {} has value type {}, which is unknown", key, *number));
    // Compare by division: the product of a corrupt count could wrap around.
    if (value.count > cursor.left() / size) {
      return data_loss(
          fmt::format("the file is truncated or broken: key {} claims {} elements of {} bytes and the file "
                      "has {} bytes left",
                      key, value.count, size, cursor.left()));
    }
    TRIMTAB_TRY(cursor.take(value.count * size, key));
  }
  value.bytes = cursor.from(begin);
  return value;
}

/// The table entry alone; `data` is filled once the start of the data is known.
base::Result<std::pair<Tensor, std::uint64_t>> read_tensor(Cursor& cursor, std::uint64_t index) {
  const auto tensor_name = cursor.string(fmt::format("the name of tensor {}", index));
  if (!tensor_name) return tl::unexpected(tensor_name.error());
  Tensor tensor;
  tensor.name = *tensor_name;
  const auto dim_count = cursor.number<std::uint32_t>(tensor.name);
  if (!dim_count) return tl::unexpected(dim_count.error());
  if (*dim_count == 0 || *dim_count > kDimsMax) {
    return data_loss(
        fmt::format("tensor {} has {} dimensions, 1 to {} are possible", tensor.name, *dim_count, kDimsMax));
  }
  tensor.dim_count = *dim_count;
  std::uint64_t values = 1;
  for (std::uint32_t i = 0; i < *dim_count; ++i) {
    const auto dim = cursor.number<std::uint64_t>(tensor.name);
    if (!dim) return tl::unexpected(dim.error());
    if (*dim == 0 || *dim > std::numeric_limits<std::int64_t>::max() / values) {
      return data_loss(
          fmt::format("tensor {} has dimension {} = {}: zero or too large", tensor.name, i, *dim));
    }
    values *= *dim;
    tensor.dims[i] = *dim;
  }
  const auto type = cursor.number<std::uint32_t>(tensor.name);
  if (!type) return tl::unexpected(type.error());
  const TypeLayout* layout = layout_of(*type);
  if (layout == nullptr) {
    return base::fail(base::Code::kUnsupported,
                      fmt::format("tensor {} has storage type {}, which is unknown here", tensor.name, *type),
                      std::string(kOrigin));
  }
  tensor.type = layout->type;
  if (tensor.dims[0] % layout->values != 0) {
    return data_loss(fmt::format("tensor {} has rows of {} values, {} needs a multiple of {}", tensor.name,
                                 tensor.dims[0], layout->name, layout->values));
  }
  const auto offset = cursor.number<std::uint64_t>(tensor.name);
  if (!offset) return tl::unexpected(offset.error());
  return std::pair{tensor, *offset};
}

base::Status place(Tensor& tensor, std::uint64_t offset, std::uint32_t alignment, std::size_t data_offset,
                   std::span<const std::byte> file) {
  const TypeLayout& layout = layout_of(tensor.type);
  const std::uint64_t blocks = tensor.row_values() * tensor.rows() / layout.values;
  if (offset % alignment != 0) {
    return data_loss(
        fmt::format("tensor {} starts at {}, not at a multiple of {}", tensor.name, offset, alignment));
  }
  const std::uint64_t room = file.size() - data_offset;
  const std::uint64_t left = offset < room ? room - offset : 0;
  if (blocks > left / layout.bytes) {
    return data_loss(
        fmt::format("the file is truncated: it ends at byte {} of tensor {} ({} blocks of {} bytes)", left,
                    tensor.name, blocks, layout.bytes));
  }
  tensor.data = file.subspan(data_offset + offset, blocks * layout.bytes);
  return {};
}

base::Result<std::uint64_t> read_counts(Cursor& cursor, std::uint64_t& keys) {
  const auto magic = cursor.take(4, "the magic number");
  if (!magic) return tl::unexpected(magic.error());
  if (std::memcmp(magic->data(), "GGUF", 4) != 0) {
    return data_loss("this is not a GGUF file: it does not begin with the letters GGUF");
  }
  const auto version = cursor.number<std::uint32_t>("the version");
  if (!version) return tl::unexpected(version.error());
  if (*version != 2 && *version != 3) {
    return base::fail(base::Code::kUnsupported,
                      fmt::format("GGUF version {}: little-endian versions 2 and 3 can be read", *version),
                      std::string(kOrigin));
  }
  const auto tensors = cursor.number<std::uint64_t>("the tensor count");
  if (!tensors) return tl::unexpected(tensors.error());
  const auto key_count = cursor.number<std::uint64_t>("the key count");
  if (!key_count) return tl::unexpected(key_count.error());
  keys = *key_count;
  return *tensors;
}

}  // namespace

base::Result<Directory> Directory::parse(std::span<const std::byte> file) {
  Cursor cursor(file);
  Directory directory;
  std::uint64_t keys = 0;
  const auto tensor_count = read_counts(cursor, keys);
  if (!tensor_count) return tl::unexpected(tensor_count.error());
  for (std::uint64_t i = 0; i < keys; ++i) {
    const auto key = cursor.string(fmt::format("key {} of {}", i, keys));
    if (!key) return tl::unexpected(key.error());
    auto value = read_value(cursor, *key);
    if (!value) return tl::unexpected(value.error());
    if (!directory.values_.emplace(*key, *value).second) {
      return data_loss(fmt::format("key {} appears twice", *key));
    }
  }
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < *tensor_count; ++i) {
    auto entry = read_tensor(cursor, i);
    if (!entry) return tl::unexpected(entry.error());
    if (!directory.tensor_index_.emplace(entry->first.name, i).second) {
      return data_loss(fmt::format("tensor {} appears twice", entry->first.name));
    }
    directory.tensors_.push_back(entry->first);
    offsets.push_back(entry->second);
  }
  std::uint32_t alignment = kAlignmentDefault;
  if (directory.has("general.alignment")) {
    const auto given = directory.u32("general.alignment");
    if (!given) return tl::unexpected(given.error());
    alignment = *given;
  }
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    return data_loss(fmt::format("general.alignment is {}, a power of two is needed", alignment));
  }
  const std::uint64_t aligned = (cursor.at() + alignment - 1) / alignment * alignment;
  // A file without tensors may end right after its table; then there is no data to align.
  directory.data_offset_ = static_cast<std::size_t>(std::min<std::uint64_t>(aligned, file.size()));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    TRIMTAB_TRY(place(directory.tensors_[i], offsets[i], alignment, directory.data_offset_, file));
  }
  return directory;
}

}  // namespace trimtab::gguf
