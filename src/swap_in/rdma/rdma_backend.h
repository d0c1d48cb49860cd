#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "swap_in/backend.h"

namespace trimtab::swap_in {

/// A piece of memory that the network card may read or write. Device memory comes as a dma-buf (of
/// cuMemGetHandleForAddressRange, `dmabuf_fd` >= 0), or by its address alone where the driver's peer-memory
/// module lets the card reach it.
struct RdmaRegion {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  int dmabuf_fd = -1;
  std::uint64_t dmabuf_offset = 0;
};

struct RdmaOptions {
  std::string device;  // as `ibv_devices` lists them; empty: the first one
  std::uint8_t port = 1;
  int gid_index = -1;         // -1: the port's local id on InfiniBand, the first usable one on RoCE
  std::uint32_t depth = 512;  // copies on their way at once
  std::uint32_t batch = 64;
};

/// Names of the machine's RDMA devices.
std::vector<std::string> rdma_devices();

/// GPUDirect RDMA (system facts, section 12): the card itself reads blocks from the arena and writes them to
/// device memory, through a connection to itself. No processor of the GPU works, and nobody calls CUDA.
/// `source` is the arena, `destination` the device's blocks; copies outside of them are refused.
///
/// Not run on the authors' machines, which have no such card: the tests that need one skip.
/// Errors: kUnavailable: no such device, or its port is down; kIo: it refused to register the memory (a
/// locked-memory limit, or no peer-memory support: the message says which).
base::Result<std::unique_ptr<Backend>> make_rdma_backend(const RdmaOptions& options, const RdmaRegion& source,
                                                         const RdmaRegion& destination);

}  // namespace trimtab::swap_in
