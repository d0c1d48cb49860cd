#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>

#include "kv_target/file/testing/child.h"
#include "kv_target/file/testing/small_target.h"
#include "kv_target/file/testing/temp_directory.h"

// What a kernel, or the container around it, may refuse: the target serves without it and says so.
namespace trimtab::kv_target::file::testing {
namespace {

/// From here on this process's calls go through the rules. False where that is not allowed.
bool filter_calls(std::span<sock_filter> rules) {
  const sock_fprog program{static_cast<unsigned short>(rules.size()), rules.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(FileKernel, WithoutIoUringThreadsDoIt) {
  const TempDirectory directory(TempDirectory::memory());
  in_child([&] {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    if (!filter_calls(rules)) return kSkip;
    auto target = open(plain(directory.path()));
    EXPECT_NE(target->describe().find("4 threads (io_uring: Operation not permitted)"), std::string::npos)
        << target->describe();
    EXPECT_EQ(write(*target, 1), Outcome::kDone);
    EXPECT_EQ(read(*target, 1), content(1));
    return 0;
  });
}

TEST(FileKernel, WhereODirectIsRefusedTheKernelBuffers) {
  const TempDirectory directory(TempDirectory::memory());
  in_child([&] {
    const auto flags = static_cast<std::uint32_t>(offsetof(seccomp_data, args[2]));
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, flags),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    if (!filter_calls(rules)) return kSkip;
    auto target = open(plain(directory.path()));
    EXPECT_NE(target->describe().find("buffered by the kernel (O_DIRECT is refused: Invalid argument)"),
              std::string::npos)
        << target->describe();
    EXPECT_EQ(write(*target, 1), Outcome::kDone);
    EXPECT_EQ(read(*target, 1), content(1));
    return 0;
  });
}

TEST(FileKernel, WithoutLockedMemoryItServesAllTheSame) {
  const TempDirectory directory(TempDirectory::memory());
  in_child([&] {
    // Locked memory is counted for all processes of a user together, so this process is a user of its own.
    const auto user = static_cast<uid_t>(1'000'000 + getpid());
    if (geteuid() == 0 && chown(directory.path().c_str(), user, user) != 0) return kSkip;
    const rlimit little{160U << 10, 160U << 10};  // enough for the ring, not for the memory
    if (setrlimit(RLIMIT_MEMLOCK, &little) != 0) return kSkip;
    if (geteuid() == 0 && setresuid(user, user, user) != 0) return kSkip;
    auto target = open(plain(directory.path()));
    EXPECT_NE(target->describe().find("buffers not registered (Cannot allocate memory)"), std::string::npos)
        << target->describe();
    EXPECT_EQ(write(*target, 1), Outcome::kDone);
    EXPECT_EQ(read(*target, 1), content(1));
    return 0;
  });
}

}  // namespace
}  // namespace trimtab::kv_target::file::testing
