#include "kv_remote/usrbio/usrbio_api.h"

#ifdef TRIMTAB_USRBIO
extern "C" {
using trimtab::kv_remote::usrbio::Cqe;
using trimtab::kv_remote::usrbio::Ior;
using trimtab::kv_remote::usrbio::Iov;
int hf3fs_iovcreate(Iov*, const char*, std::size_t, std::size_t, int);
void hf3fs_iovdestroy(Iov*);
int hf3fs_iorcreate4(Ior*, const char*, int, bool, int, int, int, std::uint64_t);
void hf3fs_iordestroy(Ior*);
int hf3fs_reg_fd(int, std::uint64_t);
void hf3fs_dereg_fd(int);
int hf3fs_prep_io(const Ior*, const Iov*, bool, void*, int, std::size_t, std::uint64_t, const void*);
int hf3fs_submit_ios(const Ior*);
int hf3fs_wait_for_ios(const Ior*, Cqe*, int, int, const timespec*);
}
#endif

namespace trimtab::kv_remote::usrbio {

base::Result<const Api*> system_api() {
#ifdef TRIMTAB_USRBIO
  static constexpr Api api = {hf3fs_iovcreate,  hf3fs_iovdestroy, hf3fs_iorcreate4,
                              hf3fs_iordestroy, hf3fs_reg_fd,     hf3fs_dereg_fd,
                              hf3fs_prep_io,    hf3fs_submit_ios, hf3fs_wait_for_ios};
  return &api;
#else
  return base::fail(base::Code::kUnsupported,
                    "this build has no 3FS USRBIO: configure with -DTRIMTAB_USRBIO=ON where 3FS's client "
                    "library (libhf3fs_api_shared) is installed",
                    "kv_remote");
#endif
}

}  // namespace trimtab::kv_remote::usrbio
