#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "kv_target/file/descriptor.h"

namespace trimtab::kv_remote {

using kv_target::file::Descriptor;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  std::string text;  // "host:port" as it was given
};

/// "host:port" or "[v6]:port"; names are resolved now, which may wait for a name server.
base::Result<Address> resolve(const std::string& text);

/// Begins to connect; writable when it is done, one way or the other (`socket_error`).
base::Result<Descriptor> begin_connect(const Address& address);
int socket_error(int fd);
base::Result<Descriptor> listen_on(const Address& address);
base::Result<std::uint16_t> port_of(int fd);
/// No delay, and probes that find a peer that is gone without a word within half a minute.
void tune(int fd);
/// Ends a connection at once: what it has not sent yet is never sent.
void abort_connection(Descriptor& socket);

/// CLOCK_MONOTONIC.
base::Nanos steady_now();
/// Lets a timerfd of that clock be readable from `at` on, at once when that is past; kForever: never.
void set_timer(const Descriptor& timer, base::Nanos at);

}  // namespace trimtab::kv_remote
