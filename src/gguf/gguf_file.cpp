#include "gguf/gguf_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace trimtab::gguf {

namespace {

constexpr std::size_t kSamples = 64;
constexpr std::size_t kSampleBytes = 4096;

tl::unexpected<base::Error> system_error(std::string_view what, const std::string& path) {
  return base::fail(base::Code::kIo,
                    fmt::format("cannot {} the model file {}: {}", what, path, std::strerror(errno)), "gguf");
}

}  // namespace

base::Result<GgufFile> GgufFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("open", path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    auto error = system_error("stat", path);
    close(fd);
    return error;
  }
  GgufFile file;
  file.path_ = path;
  if (S_ISREG(info.st_mode) && info.st_size > 0) {
    void* address = mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      auto error = system_error("map", path);
      close(fd);
      return error;
    }
    file.bytes_ = {static_cast<const std::byte*>(address), static_cast<std::size_t>(info.st_size)};
  }
  close(fd);
  auto directory = Directory::parse(file.bytes_);
  if (!directory) {
    base::Error error = directory.error();
    error.message = fmt::format("{}: {}", path, error.message);
    return tl::unexpected(std::move(error));
  }
  file.directory_ = std::move(*directory);
  return file;
}

GgufFile::GgufFile(GgufFile&& other) noexcept { swap(other); }

GgufFile& GgufFile::operator=(GgufFile&& other) noexcept {
  swap(other);
  return *this;
}

GgufFile::~GgufFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void GgufFile::swap(GgufFile& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(directory_, other.directory_);
}

std::uint64_t GgufFile::fingerprint() const {
  const std::size_t header = directory_.data_offset();
  std::uint64_t hash = base::mix(base::checksum(bytes_.first(header)), bytes_.size());
  const auto data = bytes_.subspan(header);
  // Spread evenly, first and last bytes included: two quantisations of one model differ in nearly every
  // sample.
  const std::size_t last = data.size() > kSampleBytes ? data.size() - kSampleBytes : 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::size_t at = last * i / (kSamples - 1);
    hash = base::mix(hash, base::checksum(data.subspan(at, std::min(kSampleBytes, data.size() - at))));
  }
  return hash;
}

}  // namespace trimtab::gguf
