// Every call by which a target changes something on disk, met by the end of the process: before the call, and
// where it writes, when half of it is written. The calls are the kernel's to name, not the code's: a tracer
// stops the process at each.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <cstddef>
#include <vector>

#include "kv_target/file/testing/life.h"
#include "kv_target/file/testing/temp_directory.h"

namespace trimtab::kv_target::file::testing {
namespace {

#if defined(__x86_64__)

/// Plain `write` is left out: it goes to pipes and events only.
constexpr int kChanging[] = {SYS_pwrite64, SYS_ftruncate, SYS_fallocate,     SYS_rename, SYS_unlink,
                             SYS_openat,   SYS_mkdir,     SYS_mkdirat,       SYS_fsync,  SYS_fdatasync,
                             SYS_unlinkat, SYS_renameat2, SYS_io_uring_enter};

/// From now on each of these calls stops its thread for the tracer.
bool stop_at_changes() {
  std::vector<sock_filter> filter;
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const int call : kChanging) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

void go_on(pid_t thread, int signal = 0) { ptrace(PTRACE_CONT, thread, nullptr, signal); }

/// Lets a stopped `pwrite64` write half of what it wants to, in whole pages; false when it is another call.
bool half_of_it(pid_t thread) {
  user_regs_struct registers{};
  if (ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0 || registers.orig_rax != SYS_pwrite64)
    return false;
  registers.rdx = registers.rdx / 2 / 4096 * 4096;
  int status = 0;
  return ptrace(PTRACE_SETREGS, thread, nullptr, &registers) == 0 &&
         ptrace(PTRACE_SYSCALL, thread, nullptr, nullptr) == 0 && waitpid(thread, &status, __WALL) == thread;
}

enum class Ended : std::uint8_t { kByItself, kByUs, kUntraceable };

/// Traces `child`, which waits for that, and ends it at its `last`-th change of the disk.
Ended trace(pid_t child, int last, bool amid) {
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) return Ended::kUntraceable;
  const long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
  ptrace(PTRACE_SETOPTIONS, child, nullptr, options);
  go_on(child);
  while (true) {
    const pid_t thread = waitpid(-1, &status, __WALL);
    if (thread < 0) return Ended::kUntraceable;
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (thread != child) continue;
      if (WIFSIGNALED(status)) return Ended::kByUs;
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return Ended::kByItself;
    }
    const int event = status >> 16, signal = WSTOPSIG(status);
    if (event == PTRACE_EVENT_SECCOMP && last-- == 0) {
      if (amid) half_of_it(thread);
      kill(child, SIGKILL);
    } else if (event != 0 || signal == SIGSTOP || signal == SIGTRAP) {
      go_on(thread);
    } else {
      go_on(thread, signal);
    }
  }
}

TEST(Interrupted, AtEveryChangeOfTheDiskNothingConfirmedIsLostOrInvented) {
  for (const bool uring : {true, false}) {
    int changes = 0;
    for (Ended ended = Ended::kByUs; ended == Ended::kByUs; ++changes) {
      ASSERT_LT(changes, 2'000);
      for (const bool amid : {false, true}) {
        const TempDirectory directory(TempDirectory::memory());
        int words[2];
        ASSERT_EQ(pipe(words), 0);
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
          if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(7);
          raise(SIGSTOP);
          if (!stop_at_changes()) _exit(6);
          auto target = FileTarget::open(small(directory.path(), uring));
          if (!target) _exit(3);
          base::Prng prng(11);
          serve(**target, words[1], prng, 7, 0);
          _exit(0);
        }
        close(words[1]);
        ended = trace(child, changes, amid);
        History history;
        for (Word word; read(words[0], &word, sizeof word) == sizeof word;) listen(history, word);
        close(words[0]);
        if (ended == Ended::kUntraceable) GTEST_SKIP() << "no process may be traced here";
        auto target = FileTarget::open(small(directory.path(), uring));
        ASSERT_TRUE(target) << base::to_string(target.error());
        std::string wrong;
        ASSERT_EQ(history.judge(**target, wrong), 0)
            << "at change " << changes << (amid ? ", amid it" : "") << wrong;
      }
    }
    EXPECT_GT(changes, 60) << "seven batches, and more than one new log";
  }
}

#endif

}  // namespace
}  // namespace trimtab::kv_target::file::testing
