#include "kv_pool/progress_ring.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "ipc/futex.h"

namespace trimtab::kv_pool {

namespace {

constexpr std::uint64_t kMagic = 0x31474E4952424B54;  // "TKBRING1"

struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t capacity = 0;
  alignas(64) std::atomic<std::uint64_t> head{0};  // entries ever written
  alignas(64) std::atomic<std::uint64_t> tail{0};  // entries ever read
  alignas(64) std::atomic<std::uint32_t> posted{0};
  std::atomic<std::uint32_t> sleeping{0};
};

struct Cell {
  ProgressEntry entry;
  std::uint64_t seal = 0;
};

std::uint64_t seal_of(const ProgressEntry& entry, std::uint64_t number) {
  std::uint64_t seal = base::mix(number, entry.plan);
  seal = base::mix(seal, std::uint64_t{entry.block} << 32 | entry.slot);
  seal = base::mix(seal, std::uint64_t{entry.layers} << 32 | static_cast<std::uint32_t>(entry.outcome));
  return base::mix(seal, entry.checksum);
}

std::size_t bytes_for(std::uint32_t entries) { return sizeof(Header) + entries * sizeof(Cell); }

Header& header_of(const ipc::Segment& segment) {
  return *std::launder(reinterpret_cast<Header*>(segment.data()));
}

std::byte* cell_of(const ipc::Segment& segment, std::uint64_t number, std::uint32_t capacity) {
  return segment.data() + sizeof(Header) + number % capacity * sizeof(Cell);
}

base::Status broken(const std::string& how) {
  return base::fail(base::Code::kInternal, "the loader's ring is damaged: " + how, "kv_pool");
}

}  // namespace

base::Result<RingWriter> RingWriter::make(std::uint32_t entries) {
  TRIMTAB_CHECK(entries > 0);
  auto segment = ipc::Segment::anonymous("trimtab-pool-ring", bytes_for(entries), false);
  if (!segment) return tl::unexpected(segment.error());
  RingWriter writer;
  writer.segment_ = std::move(*segment);
  writer.capacity_ = entries;
  new (writer.segment_.data()) Header{};
  header_of(writer.segment_).capacity = entries;
  return writer;
}

void RingWriter::drop(std::uint64_t plan) {
  std::erase_if(waiting_, [plan](const ProgressEntry& entry) { return entry.plan == plan; });
}

bool RingWriter::flush() {
  if (waiting_.empty()) return true;
  Header& header = header_of(segment_);
  const std::uint64_t unread = head_ - header.tail.load(std::memory_order_acquire);
  if (unread > capacity_) return false;
  std::uint64_t room = capacity_ - unread;
  if (room == 0) return true;
  for (; room > 0 && !waiting_.empty(); --room) {
    const Cell cell{waiting_.front(), seal_of(waiting_.front(), head_)};
    std::memcpy(cell_of(segment_, head_, capacity_), &cell, sizeof cell);
    waiting_.pop_front();
    ++head_;
  }
  header.head.store(head_, std::memory_order_release);
  header.posted.fetch_add(1, std::memory_order_seq_cst);
  if (header.sleeping.load(std::memory_order_seq_cst) != 0) ipc::futex_wake_all(header.posted);
  return true;
}

base::Result<RingReader> RingReader::open(ipc::Segment segment) {
  if (segment.size() < sizeof(Header)) return tl::unexpected(broken("too short").error());
  const Header& header = header_of(segment);
  RingReader reader;
  reader.capacity_ = header.capacity;
  if (header.magic != kMagic || reader.capacity_ == 0 || segment.size() < bytes_for(reader.capacity_))
    return tl::unexpected(
        broken(fmt::format("{} bytes for {} entries", segment.size(), reader.capacity_)).error());
  reader.tail_ = header.tail.load(std::memory_order_relaxed);
  reader.segment_ = std::move(segment);
  return reader;
}

base::Status RingReader::read(std::vector<ProgressEntry>& entries) {
  Header& header = header_of(segment_);
  const std::uint64_t head = header.head.load(std::memory_order_acquire);
  if (head == tail_) return {};
  if (head - tail_ > capacity_) return broken(fmt::format("{} entries written, {} read", head, tail_));
  for (; tail_ != head; ++tail_) {
    Cell cell;
    std::memcpy(&cell, cell_of(segment_, tail_, capacity_), sizeof cell);
    if (cell.seal != seal_of(cell.entry, tail_)) return broken(fmt::format("entry {}", tail_));
    entries.push_back(cell.entry);
  }
  header.tail.store(tail_, std::memory_order_release);
  return {};
}

std::uint32_t RingReader::ticket() const {
  return header_of(segment_).posted.load(std::memory_order_seq_cst);
}

void RingReader::sleep(std::uint32_t ticket, base::Nanos most) const {
  Header& header = header_of(segment_);
  header.sleeping.fetch_add(1, std::memory_order_seq_cst);
  ipc::futex_wait(header.posted, ticket, most);
  header.sleeping.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace trimtab::kv_pool
