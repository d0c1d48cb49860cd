#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>

#include "base/error.h"

/// The part of 3FS's user-space I/O interface that we call, in our own declarations of its binary form (3FS,
/// src/lib/api/hf3fs_usrbio.h, is the source). An Iov is memory shared with the 3FS client process; an Ior is
/// a ring of requests for reads only or for writes only.
namespace trimtab::kv_remote::usrbio {

struct Iov {
  std::uint8_t* base;
  void* handle;
  char id[16];
  char mount_point[256];
  std::size_t size;
  std::size_t block_size;
  int numa;
};
struct Ior {
  Iov iov;
  void* handle;
  char mount_point[256];
  bool for_read;
  int io_depth;
  int priority;
  int timeout;
  std::uint64_t flags;
};
struct Cqe {
  std::int32_t index;
  std::int32_t reserved;
  std::int64_t result;  // bytes, or -errno
  const void* userdata;
};
static_assert(sizeof(Iov) == 312 && offsetof(Iov, size) == 288 && sizeof(Ior) == 600 && sizeof(Cqe) == 24,
              "as the 3FS client lays them out on 64-bit machines");

/// The functions, as 3FS has them: 0 or a count for success, -errno otherwise, except `reg_fd`: at most 0 for
/// success, errno otherwise. `prep_io` gives the request's index. `wait_for_ios` may return fewer than are
/// ready; its timeout is an instant of CLOCK_REALTIME.
struct Api {
  int (*iovcreate)(Iov*, const char* mount_point, std::size_t size, std::size_t block_size, int numa);
  void (*iovdestroy)(Iov*);
  int (*iorcreate4)(Ior*, const char* mount_point, int entries, bool for_read, int io_depth, int timeout,
                    int numa, std::uint64_t flags);
  void (*iordestroy)(Ior*);
  int (*reg_fd)(int fd, std::uint64_t flags);
  void (*dereg_fd)(int fd);
  int (*prep_io)(const Ior*, const Iov*, bool read, void* memory, int fd, std::size_t offset,
                 std::uint64_t length, const void* userdata);
  int (*submit_ios)(const Ior*);
  int (*wait_for_ios)(const Ior*, Cqe*, int cqes, int min_results, const timespec* until);
};

/// 3FS's own library; kUnsupported in a build without it (-DTRIMTAB_USRBIO=ON links it).
base::Result<const Api*> system_api();

}  // namespace trimtab::kv_remote::usrbio
