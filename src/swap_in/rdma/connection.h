#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "swap_in/rdma/rdma_backend.h"

namespace trimtab::swap_in::rdma {

template <auto Destroy>
struct Deleter {
  template <class T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
using Context = std::unique_ptr<ibv_context, Deleter<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Deleter<ibv_dealloc_pd>>;
using Queue = std::unique_ptr<ibv_cq, Deleter<ibv_destroy_cq>>;
using Pair = std::unique_ptr<ibv_qp, Deleter<ibv_destroy_qp>>;
using Registered = std::unique_ptr<ibv_mr, Deleter<ibv_dereg_mr>>;

/// A reliable connection of a card with itself: what `from` asks, `to` serves. Members go in reverse order.
struct Connection {
  Context context;
  Domain domain;
  Queue completions;
  Pair from, to;
};

base::Result<Connection> connect_to_itself(const RdmaOptions& options);
base::Result<Registered> register_memory(ibv_pd* domain, const RdmaRegion& region, int access);
/// "what: Cannot allocate memory".
base::Error os_error(base::Code code, const std::string& what, int error);

}  // namespace trimtab::swap_in::rdma
