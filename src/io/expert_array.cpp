#include "io/expert_array.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

namespace trimtab::io {

namespace {

template <class T>
T load(const std::byte* at, bool big_endian) {
  std::array<std::byte, sizeof(T)> raw;
  std::memcpy(raw.data(), at, sizeof(T));
  if (big_endian) std::reverse(raw.begin(), raw.end());
  return std::bit_cast<T>(raw);
}

template <class T>
void decode(bool big_endian, std::span<const std::byte> raw, std::span<double> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<double>(load<T>(raw.data() + i * sizeof(T), big_endian));
  }
}

double from_half(std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  if (exponent == 31) {
    return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double from_bfloat(std::uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

base::Result<std::int64_t> element_count(std::span<const std::int64_t> shape, std::int64_t elements_max) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      return base::fail(base::Code::kInvalidArgument,
                        fmt::format("shape {} has the negative dimension {}; the file is damaged",
                                    shape_text(shape), size));
    }
    empty |= size == 0;
  }
  if (empty) return 0;
  for (const std::int64_t size : shape) {
    if (size > elements_max / count) {
      return base::fail(base::Code::kTooLarge,
                        fmt::format("shape {} has more than {} elements, what one read may hold; dump fewer "
                                    "steps or split the file",
                                    shape_text(shape), elements_max));
    }
    count *= size;
  }
  return count;
}

std::size_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::kBool:
    case ElementType::kInt8:
    case ElementType::kUint8:
      return 1;
    case ElementType::kInt16:
    case ElementType::kUint16:
    case ElementType::kFloat16:
    case ElementType::kBfloat16:
      return 2;
    case ElementType::kInt32:
    case ElementType::kUint32:
    case ElementType::kFloat32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kUint64:
    case ElementType::kFloat64:
      return 8;
  }
  return 8;
}

void decode_elements(ElementType type, bool big_endian, std::span<const std::byte> raw,
                     std::span<double> out) {
  switch (type) {
    case ElementType::kBool:
    case ElementType::kUint8:
      return decode<std::uint8_t>(big_endian, raw, out);
    case ElementType::kInt8:
      return decode<std::int8_t>(big_endian, raw, out);
    case ElementType::kInt16:
      return decode<std::int16_t>(big_endian, raw, out);
    case ElementType::kInt32:
      return decode<std::int32_t>(big_endian, raw, out);
    case ElementType::kInt64:
      return decode<std::int64_t>(big_endian, raw, out);
    case ElementType::kUint16:
      return decode<std::uint16_t>(big_endian, raw, out);
    case ElementType::kUint32:
      return decode<std::uint32_t>(big_endian, raw, out);
    case ElementType::kUint64:
      return decode<std::uint64_t>(big_endian, raw, out);
    case ElementType::kFloat32:
      return decode<float>(big_endian, raw, out);
    case ElementType::kFloat64:
      return decode<double>(big_endian, raw, out);
    case ElementType::kFloat16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = from_half(load<std::uint16_t>(raw.data() + 2 * i, big_endian));
      }
      return;
    case ElementType::kBfloat16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = from_bfloat(load<std::uint16_t>(raw.data() + 2 * i, big_endian));
      }
      return;
  }
}

base::Result<std::size_t> MemorySource::read(std::span<std::byte> out) {
  const std::size_t n = std::min(out.size(), rest_.size());
  if (n > 0) std::memcpy(out.data(), rest_.data(), n);
  rest_ = rest_.subspan(n);
  return n;
}

base::Result<std::unique_ptr<FileSource>> FileSource::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return base::fail(errno == ENOENT ? base::Code::kNotFound : base::Code::kIo,
                      fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<FileSource>(new FileSource(fd));
}

FileSource::~FileSource() { ::close(fd_); }

base::Result<std::size_t> FileSource::read(std::span<std::byte> out) {
  while (true) {
    const ssize_t n = ::read(fd_, out.data(), out.size());
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno != EINTR) {
      return base::fail(base::Code::kIo, fmt::format("cannot read: {}", std::strerror(errno)));
    }
  }
}

base::Result<std::size_t> read_full(ByteSource& source, std::span<std::byte> out) {
  std::size_t got = 0;
  while (got < out.size()) {
    const auto n = source.read(out.subspan(got));
    if (!n) return tl::unexpected(n.error());
    if (*n == 0) break;
    got += *n;
  }
  return got;
}

base::Result<std::vector<std::byte>> read_all(ByteSource& source, std::size_t bytes_max) {
  std::vector<std::byte> bytes;
  std::size_t got = 0;
  while (true) {
    // Grows with what really arrives, since a size that a file claims is no reason to reserve memory.
    bytes.resize(std::min(bytes_max + 1, std::max<std::size_t>(65'536, 2 * got)));
    const auto n = read_full(source, std::span(bytes).subspan(got));
    if (!n) return tl::unexpected(n.error());
    got += *n;
    if (got > bytes_max) {
      return base::fail(base::Code::kTooLarge,
                        fmt::format("more than {} bytes, what one read may hold; split the file", bytes_max));
    }
    if (got < bytes.size()) break;
  }
  bytes.resize(got);
  return bytes;
}

}  // namespace trimtab::io
