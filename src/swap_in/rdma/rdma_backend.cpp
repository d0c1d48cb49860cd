#include "swap_in/rdma/rdma_backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "swap_in/rdma/connection.h"

namespace trimtab::swap_in {
namespace {

bool within(const RdmaRegion& region, const std::byte* at, std::size_t bytes) {
  return at >= region.base && bytes <= region.bytes &&
         static_cast<std::size_t>(at - region.base) <= region.bytes - bytes;
}

/// The requester of the pair reads from the responder: RDMA READ, source remote, destination local. Reads of
/// a reliable connection complete in order, so one counter tells how far they have come.
class RdmaBackend final : public Backend {
 public:
  RdmaBackend(const RdmaOptions& options, const RdmaRegion& source, const RdmaRegion& destination,
              rdma::Connection connection, rdma::Registered from, rdma::Registered to)
      : options_(options),
        source_(source),
        destination_(destination),
        connection_(std::move(connection)),
        from_(std::move(from)),
        to_(std::move(to)) {}

  std::string_view name() const override { return "gpudirect_rdma"; }
  std::uint32_t batch_max() const override { return std::min(options_.batch, options_.depth); }
  base::Result<Marker> mark() override { return posted_; }

  base::Result<bool> reached(Marker marker) override {
    TRIMTAB_TRY(collect());
    return done_ >= marker;
  }
  base::Status wait(Marker marker) override {
    while (done_ < marker) TRIMTAB_TRY(collect());
    return {};
  }

  base::Status start(std::span<const Copy> copies) override {
    while (posted_ - done_ + copies.size() > options_.depth) TRIMTAB_TRY(collect());
    std::vector<ibv_sge> places(copies.size());
    std::vector<ibv_send_wr> reads(copies.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const Copy& copy = copies[i];
      if (!within(source_, copy.source, copy.bytes) || !within(destination_, copy.destination, copy.bytes))
        return base::fail(base::Code::kInvalidArgument,
                          fmt::format("a copy of {} bytes lies outside of the registered memory", copy.bytes),
                          "swap_in");
      places[i] = {reinterpret_cast<std::uint64_t>(copy.destination), static_cast<std::uint32_t>(copy.bytes),
                   to_->lkey};
      ibv_send_wr& read = reads[i];
      read.wr_id = posted_ + i + 1;
      read.next = i + 1 < copies.size() ? &reads[i + 1] : nullptr;
      read.sg_list = &places[i];
      read.num_sge = 1;
      read.opcode = IBV_WR_RDMA_READ;
      read.send_flags = IBV_SEND_SIGNALED;
      read.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(copy.source);
      read.wr.rdma.rkey = from_->rkey;
    }
    ibv_send_wr* refused = nullptr;
    if (const int error =
            copies.empty() ? 0 : ibv_post_send(connection_.from.get(), reads.data(), &refused)) {
      posted_ += static_cast<std::uint64_t>(refused - reads.data());
      return tl::unexpected<base::Error>(
          rdma::os_error(base::Code::kIo, "the RDMA device takes no more reads", error));
    }
    posted_ += copies.size();
    return {};
  }

 private:
  base::Status collect() {
    ibv_wc completed[32];
    const int count = ibv_poll_cq(connection_.completions.get(), 32, completed);
    if (count < 0) return base::fail(base::Code::kIo, "the RDMA completion queue cannot be read", "swap_in");
    for (int i = 0; i < count; ++i) {
      if (completed[i].status != IBV_WC_SUCCESS)
        return base::fail(base::Code::kIo,
                          fmt::format("an RDMA read failed: {}", ibv_wc_status_str(completed[i].status)),
                          "swap_in");
      done_ = std::max(done_, completed[i].wr_id);
    }
    return {};
  }

  RdmaOptions options_;
  RdmaRegion source_, destination_;
  rdma::Connection connection_;
  rdma::Registered from_, to_;
  Marker posted_ = 0, done_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<Backend>> make_rdma_backend(const RdmaOptions& options, const RdmaRegion& source,
                                                         const RdmaRegion& destination) {
  auto connection = rdma::connect_to_itself(options);
  if (!connection) return tl::unexpected<base::Error>(connection.error());
  auto from = rdma::register_memory(connection->domain.get(), source, IBV_ACCESS_REMOTE_READ);
  if (!from) return tl::unexpected<base::Error>(from.error());
  auto to = rdma::register_memory(connection->domain.get(), destination, IBV_ACCESS_LOCAL_WRITE);
  if (!to) return tl::unexpected<base::Error>(to.error());
  return std::make_unique<RdmaBackend>(options, source, destination, std::move(*connection), std::move(*from),
                                       std::move(*to));
}

}  // namespace trimtab::swap_in
