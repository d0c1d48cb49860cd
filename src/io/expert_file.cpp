#include "io/expert_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>

#include "io/expert_csv.h"
#include "io/expert_json.h"
#include "io/expert_torch.h"
#include "io/npy.h"
#include "io/npz.h"

namespace trimtab::io {

namespace {

using Kind = PickledValues::Kind;

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "dump");
}

enum class Format { kEmpty, kNpy, kZip, kJson, kCsv, kPickle, kOther };

Format format_of(std::span<const std::byte> start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (text.empty()) return Format::kEmpty;
  if (text.starts_with(kNpyMagic)) return Format::kNpy;
  if (text.starts_with(kZipMagic) || text.starts_with("PK\5\6")) return Format::kZip;
  if (text.starts_with('\x80')) return Format::kPickle;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && (text[first] == '{' || text[first] == '[')) return Format::kJson;
  // Text has no control characters but blanks; what has them is a format of its own.
  const auto binary = [](char c) { return c >= 0 && c < ' ' && c != '\t' && c != '\n' && c != '\r'; };
  return std::any_of(text.begin(), text.end(), binary) ? Format::kOther : Format::kCsv;
}

/// Where bytes come from, opened as often as a format needs.
struct Opener {
  std::function<base::Result<std::unique_ptr<ByteSource>>()> stream;
  std::function<base::Result<ZipArchive>()> archive;
};

base::Result<ArrayFile> from_json(ByteSource& source, std::string_view only, std::int64_t elements_max) {
  const auto document = parse_json(source);
  if (!document) return tl::unexpected(document.error());
  ArrayFile file;
  const auto add = [&](std::string name, const nlohmann::json& value) -> base::Status {
    if (!only.empty() && name != only) return {};
    if (!value.is_array()) {
      file.others.push_back(fmt::format("{}: a {}", name.substr(0, 60), value.type_name()));
      return {};
    }
    auto array = json_array(value, elements_max);
    if (!array) {
      if (!name.empty()) array.error().message = name.substr(0, 60) + ": " + array.error().message;
      if (array.error().code == base::Code::kTooLarge || document->is_array()) {
        return tl::unexpected(array.error());
      }
      file.others.push_back(array.error().message);
      return {};
    }
    elements_max -= static_cast<std::int64_t>(array->values.size());
    array->name = std::move(name);
    file.arrays.push_back(std::move(*array));
    return {};
  };
  if (document->is_array()) {
    TRIMTAB_TRY(add("", *document));
  } else if (document->is_object()) {
    for (const auto& [name, value] : document->items()) TRIMTAB_TRY(add(name, value));
  } else {
    return bad("the JSON document is neither a list nor an object");
  }
  return file;
}

base::Status add_records(const TorchFile& torch, PickledValues::Node list, std::int64_t& left,
                         ArrayFile& file) {
  const PickledValues& values = torch.values();
  if (values.kind(list) != Kind::kList) return bad("`records` is no list");
  for (const PickledValues::Node record : values.items(list)) {
    const auto* pass = values.find(record, "forward_pass_id");
    const auto* counts = values.find(record, "global_physical_count");
    if (pass == nullptr || counts == nullptr || values.kind(*pass) != Kind::kInt ||
        values.kind(*counts) != Kind::kTensor) {
      return bad(
          fmt::format("record {} has no forward_pass_id with a global_physical_count; record with "
                      "--expert-distribution-recorder-mode stat or per_pass",
                      file.records.size()));
    }
    auto array = torch.tensor(*counts, left);
    if (!array) {
      array.error().message = fmt::format("record {}: {}", file.records.size(), array.error().message);
      return tl::unexpected(array.error());
    }
    left -= static_cast<std::int64_t>(array->values.size()) + 1;
    file.records.push_back({values.integer(*pass), std::move(*array)});
    if (left <= 0) {
      return base::fail(base::Code::kTooLarge,
                        fmt::format("more counts than one read may hold after {} records; dump fewer passes",
                                    file.records.size()));
    }
  }
  return {};
}

base::Result<ArrayFile> from_torch(const ZipArchive& archive, std::string_view only,
                                   std::int64_t elements_max) {
  const auto torch = TorchFile::open(archive);
  if (!torch) return tl::unexpected(torch.error());
  const PickledValues& values = torch->values();
  ArrayFile file;
  std::int64_t left = elements_max;
  const auto add = [&](std::string name, PickledValues::Node node) -> base::Status {
    auto array = torch->tensor(node, left);
    if (!array) {
      if (!name.empty()) array.error().message = name + ": " + array.error().message;
      return tl::unexpected(array.error());
    }
    left -= static_cast<std::int64_t>(array->values.size());
    array->name = std::move(name);
    file.arrays.push_back(std::move(*array));
    return {};
  };
  if (values.kind(values.root()) == Kind::kTensor) {
    TRIMTAB_TRY(add("", values.root()));
    return file;
  }
  if (values.kind(values.root()) != Kind::kDict) {
    return bad("the file holds neither a tensor nor a dict of tensors; save {\"logical_count\": tensor}");
  }
  for (const std::string& name : values.keys(values.root())) {
    const auto* value = values.find(values.root(), name);
    if (value == nullptr || (!only.empty() && name != only && name != "records")) continue;
    if (name == "records" && values.kind(*value) == Kind::kList) {
      TRIMTAB_TRY(add_records(*torch, *value, left, file));
    } else if (values.kind(*value) == Kind::kTensor) {
      TRIMTAB_TRY(add(name, *value));
    } else {
      file.others.push_back(name + ": no tensor");
    }
  }
  return file;
}

base::Result<ArrayFile> from_zip(const Opener& opener, std::string_view only, std::int64_t elements_max) {
  const auto archive = opener.archive();
  if (!archive) return tl::unexpected(archive.error());
  const auto& names = archive->names();
  if (std::none_of(names.begin(), names.end(),
                   [](const std::string& name) { return name.ends_with(".npy"); })) {
    return from_torch(*archive, only, elements_max);
  }
  auto contents = read_npz(*archive, only, elements_max);
  if (!contents) return tl::unexpected(contents.error());
  ArrayFile file;
  file.arrays = std::move(contents->arrays);
  file.others = std::move(contents->skipped);
  return file;
}

base::Result<ArrayFile> read_any(const Opener& opener, std::string_view only, std::int64_t elements_max) {
  std::array<std::byte, 256> start{};
  auto source = opener.stream();
  if (!source) return tl::unexpected(source.error());
  const auto got = read_full(**source, start);
  if (!got) return tl::unexpected(got.error());
  const Format format = format_of(std::span(start).first(*got));
  if (format == Format::kZip) return from_zip(opener, only, elements_max);
  source = opener.stream();
  if (!source) return tl::unexpected(source.error());
  ArrayFile file;
  switch (format) {
    case Format::kNpy: {
      auto array = read_npy(**source, elements_max);
      if (!array) return tl::unexpected(array.error());
      file.arrays.push_back(std::move(*array));
      return file;
    }
    case Format::kJson:
      return from_json(**source, only, elements_max);
    case Format::kCsv: {
      auto counts = read_csv(**source, elements_max);
      if (!counts) return tl::unexpected(counts.error());
      file.arrays.push_back(std::move(counts->array));
      file.notes = std::move(counts->notes);
      return file;
    }
    case Format::kEmpty:
      return bad("the file is empty; dump the counts again");
    case Format::kPickle:
      return bad(
          "a bare pickle (or torch.save before PyTorch 1.6): save it again with torch.save, which writes a "
          "zip archive, or with numpy.save");
    case Format::kZip:
    case Format::kOther:
      break;
  }
  return bad("the format is not known; .npy, .npz, .csv, .json and .pt (torch.save) are read");
}

}  // namespace

const ExpertArray* ArrayFile::find(std::string_view name) const {
  const auto found = std::find_if(arrays.begin(), arrays.end(),
                                  [&](const ExpertArray& array) { return array.name == name; });
  return found == arrays.end() ? nullptr : &*found;
}

std::string ArrayFile::contents() const {
  std::vector<std::string> parts;
  for (const ExpertArray& array : arrays)
    parts.push_back(fmt::format("{} {}", array.name, shape_text(array.shape)));
  if (!records.empty()) parts.push_back(fmt::format("{} records", records.size()));
  parts.insert(parts.end(), others.begin(), others.end());
  if (parts.size() > 12) {
    parts[11] = fmt::format("and {} more", parts.size() - 11);
    parts.resize(12);
  }
  return parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", "));
}

base::Result<ArrayFile> read_array_bytes(std::span<const std::byte> bytes, std::string_view only,
                                         std::int64_t elements_max) {
  const Opener opener{[bytes]() -> base::Result<std::unique_ptr<ByteSource>> {
                        return std::make_unique<MemorySource>(bytes);
                      },
                      [bytes] { return ZipArchive::open_bytes(bytes); }};
  return read_any(opener, only, elements_max);
}

base::Result<ArrayFile> read_array_file(const std::string& path, std::string_view only,
                                        std::int64_t elements_max) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return bad(fmt::format("{} is a directory; name its files, e.g. {}/*.pt", path, path));
  }
  const Opener opener{[&path]() -> base::Result<std::unique_ptr<ByteSource>> {
                        auto file = FileSource::open(path);
                        if (!file) return tl::unexpected(file.error());
                        return std::move(*file);
                      },
                      [&path] { return ZipArchive::open_file(path); }};
  auto file = read_any(opener, only, elements_max);
  if (!file) {
    if (file.error().message.find(path) == std::string::npos) {
      file.error().message = path + ": " + file.error().message;
    }
  }
  return file;
}

}  // namespace trimtab::io
