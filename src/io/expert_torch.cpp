#include "io/expert_torch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace trimtab::io {

namespace {

constexpr std::size_t kPickleBytesMax = std::size_t{1} << 30;

tl::unexpected<base::Error> bad(std::string message, base::Code code = base::Code::kDataLoss) {
  return base::fail(code, std::move(message), "torch");
}

/// One past the last element that a tensor reaches in its storage, from its offset; -1 when that overflows.
std::int64_t extent_of(const PickledTensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    const std::int64_t steps = tensor.shape[d] - 1;
    if (steps > 0 && tensor.stride[d] > (std::numeric_limits<std::int64_t>::max() / 2 - last) / steps)
      return -1;
    last += std::max<std::int64_t>(steps, 0) * tensor.stride[d];
  }
  return last + 1;
}

base::Status skip(ByteSource& source, std::size_t bytes) {
  std::vector<std::byte> sink(std::min<std::size_t>(bytes, 1U << 16));
  while (bytes > 0) {
    const auto got = read_full(source, std::span(sink).first(std::min(bytes, sink.size())));
    if (!got) return tl::unexpected(got.error());
    if (*got == 0) return bad("a storage is shorter than its tensor; copy the file again");
    bytes -= *got;
  }
  return {};
}

bool is_contiguous(const PickledTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.shape[d] != 1 && tensor.stride[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

/// C order out of elements that lie `stride` apart.
std::vector<double> gathered(const PickledTensor& tensor, const std::vector<double>& from,
                             std::size_t count) {
  std::vector<double> out(count);
  std::vector<std::int64_t> at(tensor.shape.size(), 0);
  std::int64_t place = 0;
  for (double& value : out) {
    value = from[static_cast<std::size_t>(place)];
    for (std::size_t d = tensor.shape.size(); d-- > 0;) {
      place += tensor.stride[d];
      if (++at[d] < tensor.shape[d]) break;
      place -= tensor.stride[d] * tensor.shape[d];
      at[d] = 0;
    }
  }
  return out;
}

}  // namespace

base::Result<TorchFile> TorchFile::open(const ZipArchive& archive) {
  const auto found =
      std::find_if(archive.names().begin(), archive.names().end(),
                   [](const std::string& name) { return name == "data.pkl" || name.ends_with("/data.pkl"); });
  if (found == archive.names().end()) {
    return bad("the archive has neither arrays (.npy) nor a data.pkl: it is no .npz and no torch.save file",
               base::Code::kInvalidArgument);
  }
  const std::string prefix = found->substr(0, found->size() - std::string_view("data.pkl").size());
  if (std::find(archive.names().begin(), archive.names().end(), prefix + "byteorder") !=
      archive.names().end()) {
    auto order = archive.entry(prefix + "byteorder");
    if (!order) return tl::unexpected(order.error());
    const auto text = read_all(**order, 64);
    if (!text) return tl::unexpected(text.error());
    if (text->size() == 3 && std::to_integer<char>((*text)[0]) == 'b') {
      return bad("the tensors are big-endian; save the file on a little-endian machine",
                 base::Code::kUnsupported);
    }
  }
  auto source = archive.entry(*found);
  if (!source) return tl::unexpected(source.error());
  const auto bytes = read_all(**source, kPickleBytesMax);
  if (!bytes) return tl::unexpected(bytes.error());
  auto values = read_pickle(*bytes);
  if (!values) return tl::unexpected(values.error());
  return TorchFile(archive, prefix, std::move(*values));
}

base::Result<ExpertArray> TorchFile::tensor(PickledValues::Node node, std::int64_t elements_max) const {
  const PickledTensor& tensor = values_.tensor(node);
  const auto count = element_count(tensor.shape, elements_max);
  if (!count) return tl::unexpected(count.error());
  ExpertArray array;
  array.shape = tensor.shape;
  if (*count == 0) return array;
  const std::int64_t extent = extent_of(tensor);
  if (extent < 0 || extent > elements_max || tensor.offset > tensor.storage_elements ||
      extent > tensor.storage_elements - tensor.offset) {
    return bad(fmt::format(
        "a tensor of shape {}, strides {} and offset {} reaches beyond its storage of {} "
        "elements; the file is damaged",
        shape_text(tensor.shape), shape_text(tensor.stride), tensor.offset, tensor.storage_elements));
  }
  auto source = archive_->entry(prefix_ + "data/" + tensor.storage);
  if (!source) return tl::unexpected(source.error());
  const std::size_t size = bytes_of(tensor.type);
  if (static_cast<std::uint64_t>(tensor.offset) > std::numeric_limits<std::size_t>::max() / size) {
    return bad(fmt::format("a tensor at offset {}; the file is damaged", tensor.offset));
  }
  TRIMTAB_TRY(skip(**source, static_cast<std::size_t>(tensor.offset) * size));
  const std::size_t wanted = static_cast<std::size_t>(extent) * size;
  const auto raw = [&]() -> base::Result<std::vector<std::byte>> {
    std::vector<std::byte> bytes;
    while (bytes.size() < wanted) {  // as it arrives, since a tensor may lie about its storage
      const std::size_t from = bytes.size();
      bytes.resize(std::min(wanted, std::max<std::size_t>(65'536, 2 * from)));
      const auto got = read_full(**source, std::span(bytes).subspan(from));
      if (!got) return tl::unexpected(got.error());
      if (from + *got < bytes.size()) {
        return bad(fmt::format("storage {} is cut short: {} of {} bytes; copy the file again", tensor.storage,
                               from + *got, wanted));
      }
    }
    std::array<std::byte, 1> behind{};  // at the very end of an entry its sum is checked
    const auto more = read_full(**source, behind);
    if (!more) return tl::unexpected(more.error());
    return bytes;
  }();
  if (!raw) return tl::unexpected(raw.error());
  std::vector<double> values(static_cast<std::size_t>(extent));
  decode_elements(tensor.type, false, *raw, values);
  array.values =
      is_contiguous(tensor) ? std::move(values) : gathered(tensor, values, static_cast<std::size_t>(*count));
  return array;
}

}  // namespace trimtab::io
