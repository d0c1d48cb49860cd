#include "kv_state/state_host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <list>
#include <memory>
#include <thread>

#include "base/codec.h"
#include "ipc/channel.h"
#include "ipc/life_counter.h"
#include "kv_state/snapshot_server.h"
#include "kv_state/snapshot_store.h"
#include "wire/messages.h"

namespace trimtab::kv_state {

namespace {

constexpr base::Nanos kLook{100'000'000};  // so often `stop` is looked at

/// The head of a frame that carries a snapshot; the content follows.
struct KeepHeader {
  static constexpr std::uint16_t kType = 1;
  static constexpr std::size_t kBytes = 40;  // as encoded
  SnapshotName name;
  template <class A>
  void visit(A& a) {
    a(name);
  }
};

void take(SnapshotStore& store, const ipc::Frame& frame) {
  if (frame.type != KeepHeader::kType || frame.payload.size() < KeepHeader::kBytes) return;
  const std::span<const std::byte> bytes(frame.payload);
  const auto head = base::decode<KeepHeader>(bytes.first(KeepHeader::kBytes));
  // What does not fit is simply not kept; the store counts it.
  if (head) (void)store.put(head->name, bytes.subspan(KeepHeader::kBytes));
}

/// Takes snapshots from engines: a thread for each, since there are as many as ranks on the machine.
class KeepListener {
 public:
  KeepListener(SnapshotStore& store, ipc::Listener listener, const std::atomic<bool>& stop)
      : store_(store), listener_(std::move(listener)), stop_(stop), thread_([this] { accept(); }) {}
  ~KeepListener() {
    thread_.join();
    for (Reader& one : readers_) one.thread.join();
  }

 private:
  void accept() {
    while (!stop_) {
      auto fd = listener_.accept(kLook);
      join_ended();
      // Out of descriptors, say: whoever dials meanwhile waits, and is taken when there are some again.
      if (!fd) std::this_thread::sleep_for(std::chrono::nanoseconds(kLook.value));
      if (!fd || !*fd) continue;
      Reader& reader = readers_.emplace_back();
      reader.thread = std::thread([this, &reader, channel = std::make_shared<ipc::Channel>(**fd)] {
        read(*channel);
        reader.ended = true;
      });
    }
  }
  /// A thread that ended keeps its stack until somebody joins it, and engines are restarted for months.
  void join_ended() {
    for (auto it = readers_.begin(); it != readers_.end();) {
      if (!it->ended) {
        ++it;
        continue;
      }
      it->thread.join();
      it = readers_.erase(it);
    }
  }
  void read(ipc::Channel& channel) {
    while (!stop_) {
      auto frame = channel.receive(kLook);
      if (!frame) return;
      if (*frame) take(store_, **frame);
    }
  }

  SnapshotStore& store_;
  ipc::Listener listener_;
  const std::atomic<bool>& stop_;
  struct Reader {
    std::thread thread;
    std::atomic<bool> ended{false};
  };
  std::list<Reader> readers_;  // of the accepting thread
  std::thread thread_;
};

}  // namespace

std::string keep_socket_path(const std::string& runtime_dir, std::uint32_t machine) {
  return fmt::format("{}/state-{}.sock", runtime_dir, machine);
}

std::vector<std::byte> keep_message(const SnapshotName& name, std::span<const std::byte> content) {
  ipc::Frame frame{KeepHeader::kType, base::encode(KeepHeader{name})};
  frame.payload.insert(frame.payload.end(), content.begin(), content.end());
  return ipc::pack(frame);
}

base::Status run_state_host(const StateHostOptions& options, const std::atomic<bool>& stop) {
  const auto epoch = ipc::next_life(options.epoch_path);
  if (!epoch) return tl::unexpected(epoch.error());
  SnapshotStore store(options.memory_bytes, HostId{options.machine}, *epoch);
  ServerOptions server_options;
  server_options.listen = {options.host, 0};
  auto server = SnapshotServer::start(store, server_options);
  if (!server) return tl::unexpected(server.error());
  auto listener = ipc::Listener::bind(options.keep_socket);
  if (!listener) return tl::unexpected(listener.error());
  const KeepListener keeps(store, std::move(*listener), stop);
  wire::StateHello hello;
  hello.machine = options.machine;
  hello.epoch = *epoch;
  hello.host = options.host;
  hello.port = (*server)->port();
  hello.pid = getpid();
  while (!stop) {
    auto channel = ipc::Channel::connect(options.control_socket, base::Nanos{0});
    if (!channel || !channel->send(wire::to_frame(hello))) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kLook.value));
      continue;
    }
    while (!stop) {
      const auto frame = channel->receive(kLook);
      if (!frame) break;  // the entrypoint went; its successor is told anew
    }
  }
  return {};
}

}  // namespace trimtab::kv_state
