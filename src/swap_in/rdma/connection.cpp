#include "swap_in/rdma/connection.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace trimtab::swap_in {

std::vector<std::string> rdma_devices() {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  std::vector<std::string> names;
  for (int i = 0; devices != nullptr && i < count; ++i) names.emplace_back(ibv_get_device_name(devices[i]));
  if (devices != nullptr) ibv_free_device_list(devices);
  return names;
}

namespace rdma {
namespace {

base::Result<Context> open_device(const RdmaOptions& options) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  Context context;
  for (int i = 0; devices != nullptr && i < count && !context; ++i)
    if (options.device.empty() || options.device == ibv_get_device_name(devices[i]))
      context.reset(ibv_open_device(devices[i]));
  if (devices != nullptr) ibv_free_device_list(devices);
  if (!context)
    return base::fail(base::Code::kUnavailable,
                      options.device.empty()
                          ? "this machine has no RDMA device; choose another way to swap in"
                          : fmt::format("no RDMA device '{}'; there are: {}", options.device,
                                        fmt::join(rdma_devices(), ", ")),
                      "swap_in");
  return context;
}

/// The connection's own address: a local id on InfiniBand, a global one on RoCE.
ibv_ah_attr own_address(const RdmaOptions& options, const ibv_port_attr& port, const ibv_gid& gid,
                        int gid_index) {
  ibv_ah_attr address{};
  address.dlid = port.lid;
  address.port_num = options.port;
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET || options.gid_index >= 0) {
    address.is_global = 1;
    address.grh.dgid = gid;
    address.grh.sgid_index = static_cast<std::uint8_t>(gid_index);
    address.grh.hop_limit = 1;
  }
  return address;
}

/// Reset, initialised, ready to receive, ready to send.
int bring_up(ibv_qp* pair, std::uint32_t other, const ibv_ah_attr& address, const ibv_port_attr& port) {
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = address.port_num;
  init.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  if (const int error =
          ibv_modify_qp(pair, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
    return error;
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = port.active_mtu;
  receive.dest_qp_num = other;
  receive.max_dest_rd_atomic = 16;
  receive.min_rnr_timer = 12;
  receive.ah_attr = address;
  if (const int error = ibv_modify_qp(pair, &receive,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
    return error;
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.timeout = 14;  // 67 ms
  send.retry_cnt = 7;
  send.rnr_retry = 7;
  send.max_rd_atomic = 16;
  return ibv_modify_qp(pair, &send,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC);
}

Pair make_pair(Connection& connection, std::uint32_t depth) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = connection.completions.get();
  wanted.recv_cq = connection.completions.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {depth, 1, 1, 1, 0};
  return Pair{ibv_create_qp(connection.domain.get(), &wanted)};
}

}  // namespace

base::Error os_error(base::Code code, const std::string& what, int error) {
  return {code, fmt::format("{}: {}", what, std::strerror(error)), "swap_in"};
}

base::Result<Connection> connect_to_itself(const RdmaOptions& options) {
  Connection connection;
  auto context = open_device(options);
  if (!context) return tl::unexpected<base::Error>(context.error());
  connection.context = std::move(*context);
  ibv_port_attr port{};
  if (const int error = ibv_query_port(connection.context.get(), options.port, &port))
    return tl::unexpected<base::Error>(
        os_error(base::Code::kUnavailable, fmt::format("RDMA port {} cannot be asked", options.port), error));
  if (port.state != IBV_PORT_ACTIVE)
    return base::fail(base::Code::kUnavailable,
                      fmt::format("RDMA port {} is {}; connect its cable or choose another port",
                                  options.port, ibv_port_state_str(port.state)),
                      "swap_in");
  const int gid_index = options.gid_index < 0 ? 0 : options.gid_index;
  ibv_gid gid{};
  if (ibv_query_gid(connection.context.get(), options.port, gid_index, &gid) != 0)
    return base::fail(base::Code::kUnavailable,
                      fmt::format("RDMA port {} has no address number {}", options.port, gid_index),
                      "swap_in");
  connection.domain.reset(ibv_alloc_pd(connection.context.get()));
  connection.completions.reset(
      ibv_create_cq(connection.context.get(), static_cast<int>(options.depth), nullptr, nullptr, 0));
  if (!connection.domain || !connection.completions)
    return tl::unexpected<base::Error>(os_error(base::Code::kIo, "the RDMA device gives no queue", errno));
  connection.from = make_pair(connection, options.depth);
  connection.to = make_pair(connection, 1);
  if (!connection.from || !connection.to)
    return tl::unexpected<base::Error>(
        os_error(base::Code::kIo,
                 fmt::format("the RDMA device gives no queue pair of depth {}", options.depth), errno));
  const ibv_ah_attr address = own_address(options, port, gid, gid_index);
  int error = bring_up(connection.from.get(), connection.to->qp_num, address, port);
  if (error == 0) error = bring_up(connection.to.get(), connection.from->qp_num, address, port);
  if (error != 0)
    return tl::unexpected<base::Error>(
        os_error(base::Code::kIo, "the RDMA device does not connect to itself", error));
  return connection;
}

base::Result<Registered> register_memory(ibv_pd* domain, const RdmaRegion& region, int access) {
  const auto address = reinterpret_cast<std::uint64_t>(region.base);
  Registered memory{region.dmabuf_fd >= 0 ? ibv_reg_dmabuf_mr(domain, region.dmabuf_offset, region.bytes,
                                                              address, region.dmabuf_fd, access)
                                          : ibv_reg_mr(domain, region.base, region.bytes, access)};
  if (memory) return memory;
  const int error = errno;
  const char* fix = error == ENOMEM   ? "raise the locked-memory limit (ulimit -l)"
                    : error == EFAULT ? "device memory needs a dma-buf or the driver's peer-memory module"
                                      : "see the kernel's log";
  return tl::unexpected<base::Error>(os_error(
      base::Code::kIo,
      fmt::format("the RDMA device does not take {} bytes of memory ({})", region.bytes, fix), error));
}

}  // namespace rdma
}  // namespace trimtab::swap_in
