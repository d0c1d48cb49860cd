#pragma once

#include "base/error.h"
#include "kv/snapshot_directory.h"
#include "kv_state/snapshot_client.h"

namespace trimtab::kv_state {

/// Brings what the directory knows of one machine up to date: asks for its changes since, or for its list
/// when they are too long ago, the machine was restarted, or the directory does not know it. An error says
/// that the machine did not answer; the directory is as it was, and whoever watches the machine's life
/// decides whether it is dead (`SnapshotDirectory::remove_machine`).
base::Status refresh(kv::SnapshotDirectory& directory, kv::HostId machine, const Endpoint& endpoint,
                     SnapshotClient& client, base::Nanos timeout);

}  // namespace trimtab::kv_state
