#include "io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

namespace trimtab::io {

namespace {

constexpr std::size_t kHeaderBytesMax = 65'536;
constexpr std::size_t kChunkElements = 8'192;

struct Header {
  ElementType type = ElementType::kFloat64;
  bool big_endian = false;
  bool fortran = false;
  std::vector<std::int64_t> shape;
};

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "npy");
}

/// A header quoted in an error: what is printable of its first bytes.
std::string quoted(std::string_view text) {
  std::string out(text.substr(0, 120));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

/// The text behind `'key':` in the header's Python literal.
std::optional<std::string_view> value_of(std::string_view header, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::size_t at = header.find(fmt::format("{0}{1}{0}", quote, key));
    if (at == std::string_view::npos) continue;
    std::string_view rest = header.substr(at + key.size() + 2);
    while (!rest.empty() && (rest.front() == ' ' || rest.front() == ':')) rest.remove_prefix(1);
    return rest;
  }
  return std::nullopt;
}

std::optional<ElementType> type_of(char kind, char size) {
  using enum ElementType;
  switch (kind) {
    case 'b':
      return size == '1' ? std::optional(kBool) : std::nullopt;
    case 'i':
      return size == '1'   ? std::optional(kInt8)
             : size == '2' ? std::optional(kInt16)
             : size == '4' ? std::optional(kInt32)
             : size == '8' ? std::optional(kInt64)
                           : std::nullopt;
    case 'u':
      return size == '1'   ? std::optional(kUint8)
             : size == '2' ? std::optional(kUint16)
             : size == '4' ? std::optional(kUint32)
             : size == '8' ? std::optional(kUint64)
                           : std::nullopt;
    case 'f':
      return size == '2'   ? std::optional(kFloat16)
             : size == '4' ? std::optional(kFloat32)
             : size == '8' ? std::optional(kFloat64)
                           : std::nullopt;
    default:
      return std::nullopt;
  }
}

base::Status parse_type(std::string_view text, Header& header) {
  const bool quote = !text.empty() && (text.front() == '\'' || text.front() == '"');
  const std::size_t end = quote ? text.find(text.front(), 1) : std::string_view::npos;
  if (end == std::string_view::npos) {
    return bad(fmt::format("the type \"{}\" is a record or no type at all; save one plain array of counts",
                           quoted(text)));
  }
  const std::string_view descr = text.substr(1, end - 1);
  const auto type = descr.size() == 3 ? type_of(descr[1], descr[2]) : std::nullopt;
  if (!type || std::string_view("<>|=").find(descr[0]) == std::string_view::npos) {
    return bad(fmt::format(
        "type '{}' is not read ({}); save integers or floats, e.g. "
        "counts.astype(numpy.int64)",
        quoted(descr),
        descr.find('O') != std::string_view::npos ? "objects are pickles, whose loading runs code"
                                                  : "counts are bool, int, uint or float of 1 to 8 bytes"));
  }
  header.type = *type;
  header.big_endian = descr[0] == '>';
  return {};
}

base::Status parse_shape(std::string_view text, Header& header) {
  const std::size_t end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) {
    return bad(fmt::format("the shape \"{}\" is no tuple; the header is damaged", quoted(text)));
  }
  const std::string_view inside = text.substr(1, end - 1);
  for (std::size_t at = 0; at < inside.size();) {
    if (inside[at] == ' ' || inside[at] == ',' || inside[at] == 'L') {
      ++at;
      continue;
    }
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(inside.data() + at, inside.data() + inside.size(), size);
    if (error != std::errc{} || size < 0) {
      return bad(fmt::format("the shape \"{}\" is not made of sizes; the header is damaged", quoted(inside)));
    }
    header.shape.push_back(size);
    at = static_cast<std::size_t>(next - inside.data());
  }
  if (header.shape.size() > 8) {
    return bad(fmt::format("{} dimensions; counts have at most 4", header.shape.size()));
  }
  return {};
}

base::Result<Header> parse_header(std::string_view text) {
  const auto descr = value_of(text, "descr");
  const auto order = value_of(text, "fortran_order");
  const auto shape = value_of(text, "shape");
  if (!descr || !order || !shape) {
    return bad(
        fmt::format("the header \"{}\" lacks descr, fortran_order or shape; write the file with "
                    "numpy.save",
                    quoted(text)));
  }
  Header header;
  TRIMTAB_TRY(parse_type(*descr, header));
  TRIMTAB_TRY(parse_shape(*shape, header));
  header.fortran = order->starts_with("True");
  if (!header.fortran && !order->starts_with("False")) {
    return bad(fmt::format("fortran_order is \"{}\", neither True nor False", quoted(order->substr(0, 8))));
  }
  return header;
}

base::Result<Header> read_header(ByteSource& source) {
  std::array<std::byte, 12> start{};
  auto got = read_full(source, std::span(start).first(10));
  if (!got) return tl::unexpected(got.error());
  if (*got < 10 || std::memcmp(start.data(), kNpyMagic.data(), kNpyMagic.size()) != 0) {
    return bad("no .npy file: it does not begin with \\x93NUMPY; write it with numpy.save");
  }
  const int version = std::to_integer<int>(start[6]);
  if (version < 1 || version > 3) {
    return bad(fmt::format("format version {} is not read (1 to 3 are); write it with numpy.save", version));
  }
  if (version > 1) {
    got = read_full(source, std::span(start).subspan(10, 2));
    if (!got) return tl::unexpected(got.error());
    if (*got < 2) return bad("the header is cut short; copy the file again");
  }
  std::size_t length = 0;
  for (int i = version > 1 ? 4 : 2; i-- > 0;) {
    length = length << 8 | std::to_integer<std::size_t>(start[static_cast<std::size_t>(8 + i)]);
  }
  if (length > kHeaderBytesMax) {
    return bad(
        fmt::format("a header of {} bytes (at most {}); the file is damaged", length, kHeaderBytesMax));
  }
  std::string text(length, '\0');
  got = read_full(source, std::as_writable_bytes(std::span(text)));
  if (!got) return tl::unexpected(got.error());
  if (*got < length) return bad("the header is cut short; copy the file again");
  return parse_header(text);
}

/// Walks a Fortran-ordered array and gives each element's place in C order.
class FortranWalk {
 public:
  explicit FortranWalk(std::span<const std::int64_t> shape)
      : shape_(shape.begin(), shape.end()), at_(shape.size(), 0), stride_(shape.size(), 1) {
    for (std::size_t d = shape_.size(); d-- > 1;) stride_[d - 1] = stride_[d] * shape_[d];
  }
  std::size_t next() {
    const std::int64_t here = place_;
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      place_ += stride_[d];
      if (++at_[d] < shape_[d]) break;
      place_ -= stride_[d] * shape_[d];
      at_[d] = 0;
    }
    return static_cast<std::size_t>(here);
  }

 private:
  std::vector<std::int64_t> shape_, at_, stride_;
  std::int64_t place_ = 0;
};

template <class T>
std::string bytes_with(std::span<const std::int64_t> shape, std::span<const T> values) {
  std::string tuple;
  for (const std::int64_t size : shape) tuple += fmt::format("{}, ", size);
  if (tuple.size() > 2) tuple.resize(tuple.size() - (shape.size() == 1 ? 1 : 2));
  std::string header =
      fmt::format("{{'descr': '<i{}', 'fortran_order': False, 'shape': ({}), }}", sizeof(T), tuple);
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  std::string out(kNpyMagic);
  out += '\1';
  out += '\0';
  out += static_cast<char>(header.size() & 0xFF);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  const auto raw = std::as_bytes(values);
  out.append(reinterpret_cast<const char*>(raw.data()), raw.size());
  return out;
}

}  // namespace

base::Result<ExpertArray> read_npy(ByteSource& source, std::int64_t elements_max) {
  const auto header = read_header(source);
  if (!header) return tl::unexpected(header.error());
  const auto count = element_count(header->shape, elements_max);
  if (!count) return tl::unexpected(count.error());
  ExpertArray array;
  array.shape = header->shape;
  if (*count == 0) return array;  // its other dimensions may be anything
  const auto total = static_cast<std::size_t>(*count);
  const std::size_t size = bytes_of(header->type);
  std::vector<std::byte> raw(std::min(total, kChunkElements) * size);
  std::vector<double> chunk(header->fortran ? std::min(total, kChunkElements) : 0);
  FortranWalk walk(header->shape);
  for (std::size_t done = 0; done < total;) {
    const std::size_t n = std::min(kChunkElements, total - done);
    const auto got = read_full(source, std::span(raw).first(n * size));
    if (!got) return tl::unexpected(got.error());
    if (*got < n * size) {
      return bad(fmt::format("the array is cut short: {} of {} values of shape {}; copy the file again",
                             done + *got / size, total, shape_text(header->shape)));
    }
    // Grows as bytes arrive, so that a lying shape costs nothing; Fortran order needs all the places at once.
    if (header->fortran) {
      if (array.values.empty()) array.values.resize(total);
      decode_elements(header->type, header->big_endian, raw, std::span(chunk).first(n));
      for (std::size_t i = 0; i < n; ++i) array.values[walk.next()] = chunk[i];
    } else {
      array.values.resize(done + n);
      decode_elements(header->type, header->big_endian, raw, std::span(array.values).subspan(done, n));
    }
    done += n;
  }
  // To the very end: there an archive checks its sum, and a second array would be lost in silence.
  std::array<std::byte, 1> behind{};
  const auto more = source.read(behind);
  if (!more) return tl::unexpected(more.error());
  if (*more > 0) {
    return bad(
        fmt::format("bytes follow the array of shape {}: one file holds one array; save several "
                    "with numpy.savez",
                    shape_text(header->shape)));
  }
  return array;
}

std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int64_t> values) {
  return bytes_with(shape, values);
}

std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int32_t> values) {
  return bytes_with(shape, values);
}

}  // namespace trimtab::io
