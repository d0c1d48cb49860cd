#include "agents/journeys.h"

#include <charconv>
#include <utility>

namespace trimtab::agents {

namespace {
/// Of an entry in the maps, roughly: so that many tiny requests are bounded too.
constexpr std::size_t kRequestBytes = 256;
}  // namespace

void Journeys::append(const io::Entry& entry) {
  const model::RequestId id = entry.request();
  if (id.value == 0) return;
  const auto [found, added] = requests_.try_emplace(id);
  if (added) {
    order_.push_back(id);
    bytes_ += kRequestBytes;
  }
  Kept& kept = found->second;
  if (const auto* name = std::get_if<io::NameEntry>(&entry.body)) {
    kept.name = name->name;
    names_[name->name] = id;
    bytes_ += name->name.size();
  }
  const std::size_t before = kept.records.size();
  if (before == 0) {
    const auto magic = std::as_bytes(std::span{io::kRecordFileMagic.data(), io::kRecordFileMagic.size()});
    kept.records.assign(magic.begin(), magic.end());
  }
  io::append_record(kept.records, base::encode(entry));
  bytes_ += kept.records.size() - before;
  evict();
}

void Journeys::evict() {
  // The newest stays whatever its size: a request's length is bounded by the context limit.
  while (bytes_ > bytes_max_ && order_.size() > 1) {
    const auto found = requests_.find(order_.front());
    const auto name = names_.find(found->second.name);
    if (name != names_.end() && name->second == order_.front()) names_.erase(name);
    bytes_ -= kRequestBytes + found->second.name.size() + found->second.records.size();
    requests_.erase(found);
    order_.pop_front();
  }
}

std::optional<io::LoggedRequest> Journeys::find(const std::string& name_or_id) const {
  model::RequestId id;
  if (const auto name = names_.find(name_or_id); name != names_.end()) {
    id = name->second;
  } else {
    const char* end = name_or_id.data() + name_or_id.size();
    const auto parsed = std::from_chars(name_or_id.data(), end, id.value);
    if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  }
  const auto found = requests_.find(id);
  if (found == requests_.end()) return std::nullopt;
  io::LoggedRequest request;
  request.id = id;
  request.name = found->second.name;
  (void)io::scan_records(found->second.records, [&](std::span<const std::byte> payload) {
    if (auto entry = base::decode<io::Entry>(payload)) request.entries.push_back(std::move(*entry));
  });
  return request;
}

}  // namespace trimtab::agents
