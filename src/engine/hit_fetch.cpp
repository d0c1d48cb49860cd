#include "engine/hit_fetch.h"

#include <algorithm>

#include "kv_pool/content_checksum.h"

namespace trimtab::engine {

namespace {

// So often a fetch looks whether it is still wanted, and after so long a silence whether the loader is there.
constexpr base::Nanos kLook{20'000'000}, kQuiet{1'000'000'000};

}  // namespace

swap_in::SwapRequest HitFetch::by_layer(const HitLayout& layout, std::uint32_t batch) {
  layout_ = &layout;
  swap_in::SwapRequest request;
  request.layers = layout.spans;
  for (const std::uint32_t block : job_.blocks) request.destinations.push_back(arena_.block(block).data());
  for (const model::BlockKey key : job_.keys) checksums_.emplace_back(kv_pool::content_seed(key));
  request.feed = shared_from_this();
  request.batch = batch;
  request.patience = patience_;
  return request;
}

base::Status HitFetch::still_there(bool news) {
  const base::Nanos now = clock_.now();
  if (!news && now - begun_ > patience_ + kQuiet)
    return base::fail(base::Code::kDeadlineExceeded, "the pool's loader never said how the hit ended",
                      "engine");
  if (!news && now - heard_ > kQuiet) {
    if (auto alive = client_.stats(); !alive) return tl::unexpected(alive.error());
    news = true;
  }
  if (news) heard_ = now;
  return {};
}

base::Status HitFetch::take(std::uint32_t layer, std::vector<Arrival>& arrivals, base::Nanos wait) {
  if (cancelled()) return base::fail(base::Code::kCancelled, "nobody wants this hit any more", "engine");
  came_.clear();
  TRIMTAB_TRY(ticket_.take(layer, came_, std::min(wait, kLook)));
  for (const auto& one : came_) arrivals.push_back({one.block, one.bytes});
  return still_there(!came_.empty());
}

base::Status HitFetch::landed(std::uint32_t layer) {
  const swap_in::LayerSpan span = layout_->spans[layer];
  const bool last = layer + 1 == layout_->spans.size();
  for (std::uint32_t i = 0; i < job_.blocks.size(); ++i) {
    checksums_[i].add(arena_.block(job_.blocks[i]).subspan(span.offset, span.bytes));
    if (!last) continue;
    if (checksums_[i].value() != ticket_.checksum(i))
      return base::fail(base::Code::kDataLoss,
                        "block " + model::to_string(job_.keys[i]) + " is damaged: it is not what was stored",
                        "engine");
    verified_ = i + 1;
  }
  return {};
}

void HitFetch::opened(std::uint32_t count) {
  // Whoever waits looks again after the first layer and then eight times more, not after each of a hundred.
  const std::uint32_t step =
      std::max<std::uint32_t>(1, static_cast<std::uint32_t>(layout_->spans.size() / 8));
  if (count == 1 || count % step == 0) hooks_.more();
}

void HitFetch::copy_blocks(MoveDone& done) {
  std::vector<bool> there(job_.blocks.size());
  std::fill_n(there.begin(), verified_, true);
  done.moved = verified_;
  std::size_t end = job_.blocks.size();  // the first that does not come: of no use are those after it
  std::vector<kv_pool::FetchTicket::Finished> finished;
  while (done.moved < end) {
    done.cancelled = cancelled();
    if (done.cancelled) return;
    finished.clear();
    base::Status came = ticket_.finished(finished, kLook);
    if (came) came = still_there(!finished.empty());
    if (!came) {
      loader_lost_ = came.error().code != base::Code::kDeadlineExceeded;
      done.status = came;
      return;
    }
    for (const auto& one : finished) {
      if (there[one.block] || one.block >= end) continue;
      base::Status here = one.status;
      if (here) here = ticket_.copy(one.block, arena_.block(job_.blocks[one.block]));
      if (here) {
        there[one.block] = true;
      } else {
        end = one.block;
        done.status = here;
      }
    }
    while (done.moved < end && there[done.moved]) ++done.moved;
  }
}

}  // namespace trimtab::engine
