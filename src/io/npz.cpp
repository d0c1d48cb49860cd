#include "io/npz.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>

#include "io/npy.h"

namespace trimtab::io {

namespace {

constexpr std::size_t kEntriesMax = 1'000'000;  // a dump with a record per pass has some entries a pass

base::Error zip_error(base::Code code, const std::string& what, zip_error_t* error) {
  base::Error out{code, fmt::format("{}: {}", what, zip_error_strerror(error)), "zip"};
  zip_error_fini(error);
  return out;
}

class EntrySource final : public ByteSource {
 public:
  EntrySource(zip_file_t* file, std::string name) : file_(file), name_(std::move(name)) {}
  ~EntrySource() override { zip_fclose(file_); }
  base::Result<std::size_t> read(std::span<std::byte> out) override {
    const zip_int64_t n = zip_fread(file_, out.data(), out.size());
    if (n >= 0) return static_cast<std::size_t>(n);
    return base::fail(
        base::Code::kDataLoss,
        fmt::format("entry {} is damaged ({}); copy the archive again", name_, zip_file_strerror(file_)),
        "zip");
  }

 private:
  zip_file_t* file_;
  std::string name_;
};

std::string listed(const std::vector<std::string>& names) {
  const std::size_t shown = std::min<std::size_t>(names.size(), 12);
  return fmt::format("{}{}",
                     fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "");
}

}  // namespace

void ZipArchive::Close::operator()(zip* archive) const { zip_discard(archive); }

base::Result<ZipArchive> ZipArchive::open_file(const std::string& path) {
  int code = 0;
  zip_t* raw = zip_open(path.c_str(), ZIP_RDONLY, &code);
  if (raw == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const bool absent = code == ZIP_ER_NOENT;
    return tl::unexpected(zip_error(absent ? base::Code::kNotFound : base::Code::kDataLoss,
                                    "cannot open the archive (cut short while copied?)", &error));
  }
  ZipArchive archive(raw);
  TRIMTAB_TRY(archive.list());
  return archive;
}

base::Result<ZipArchive> ZipArchive::open_bytes(std::span<const std::byte> bytes) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  if (source == nullptr) return tl::unexpected(zip_error(base::Code::kInternal, "no archive", &error));
  zip_t* raw = zip_open_from_source(source, ZIP_RDONLY, &error);
  if (raw == nullptr) {
    zip_source_free(source);
    return tl::unexpected(zip_error(base::Code::kDataLoss, "cannot open the archive", &error));
  }
  zip_error_fini(&error);
  ZipArchive archive(raw);
  TRIMTAB_TRY(archive.list());
  return archive;
}

base::Status ZipArchive::list() {
  const zip_int64_t count = zip_get_num_entries(archive_.get(), 0);
  if (count < 0 || static_cast<std::size_t>(count) > kEntriesMax) {
    return base::fail(base::Code::kTooLarge,
                      fmt::format("the archive has {} entries (at most {})", count, kEntriesMax), "zip");
  }
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* name = zip_get_name(archive_.get(), static_cast<zip_uint64_t>(i), 0);
    names_.emplace_back(name == nullptr ? "" : name);
    index_.try_emplace(names_.back(), static_cast<std::uint64_t>(i));
  }
  return {};
}

base::Result<std::unique_ptr<ByteSource>> ZipArchive::entry(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    return base::fail(base::Code::kNotFound,
                      fmt::format("the archive has no entry {}; it has {}", name, listed(names_)), "zip");
  }
  zip_file_t* file = zip_fopen_index(archive_.get(), found->second, 0);
  if (file == nullptr) {
    return base::fail(base::Code::kDataLoss,
                      fmt::format("entry {} cannot be opened: {}", name, zip_strerror(archive_.get())),
                      "zip");
  }
  return std::make_unique<EntrySource>(file, std::string(name));
}

base::Result<NpzContents> read_npz(const ZipArchive& archive, std::string_view only,
                                   std::int64_t elements_max) {
  NpzContents contents;
  std::int64_t left = elements_max;
  for (const std::string& entry_name : archive.names()) {
    if (!entry_name.ends_with(".npy")) continue;
    const std::string name = entry_name.substr(0, entry_name.size() - 4);
    if (!only.empty() && name != only) continue;
    auto source = archive.entry(entry_name);
    if (!source) return tl::unexpected(source.error());
    auto array = read_npy(**source, left);
    if (!array) {
      if (only.empty() && array.error().code == base::Code::kInvalidArgument) {
        contents.skipped.push_back(fmt::format("{}: {}", name, array.error().message));
        continue;
      }
      array.error().message = fmt::format("array {}: {}", name, array.error().message);
      return tl::unexpected(array.error());
    }
    left -= static_cast<std::int64_t>(array->values.size());
    array->name = name;
    contents.arrays.push_back(std::move(*array));
  }
  if (!only.empty() && contents.arrays.empty()) {
    return base::fail(base::Code::kNotFound,
                      fmt::format("no array {} in the file; it has {}", only, listed(archive.names())),
                      "npz");
  }
  return contents;
}

base::Status check_replaceable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  return base::fail(base::Code::kIo,
                    fmt::format("cannot write {}: it is a {}; give the name of a file", path,
                                S_ISDIR(status.st_mode) ? "directory" : "device or a pipe"),
                    "io");
}

base::Status write_zip(const std::string& path,
                       const std::vector<std::pair<std::string, std::string>>& entries) {
  TRIMTAB_TRY(check_replaceable(path));
  int code = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  if (archive == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    return tl::unexpected(zip_error(base::Code::kIo, fmt::format("cannot write {}", path), &error));
  }
  const auto failed = [&] {
    base::Error error{base::Code::kIo, fmt::format("cannot write {}: {}", path, zip_strerror(archive)),
                      "zip"};
    zip_discard(archive);
    return tl::unexpected(error);
  };
  for (const auto& [name, bytes] : entries) {
    zip_source_t* source = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
    if (source == nullptr) return failed();
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return failed();
    }
    // 1980-01-01 00:00: the same contents give the same bytes.
    if (zip_file_set_dostime(archive, static_cast<zip_uint64_t>(index), 0, 0x21, 0) != 0) return failed();
  }
  if (zip_close(archive) != 0) return failed();
  return {};
}

}  // namespace trimtab::io
