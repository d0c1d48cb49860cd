#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agents/agent.h"

namespace trimtab::agents {

/// The agent of one reference engine: its ranks (or encoders) are processes that connect to the control
/// socket and speak `wire`.
class ReferenceAgent final : public Agent {
 public:
  ReferenceAgent(model::Role role, model::EngineId engine, std::uint32_t ranks, ControlServer& server,
                 OnReport on_report);

  /// The rank of this hello is on `connection` from now on; reports Joined. `hello.rank` must be below
  /// `ranks()`.
  void attach(ConnectionId connection, const wire::Hello& hello);
  /// The rank's connection ended; reports Lost. The ranks of a group step together, so its peers wait for a
  /// rank that will not come: they are told to shut down, and the supervisor starts the whole group anew.
  /// They stay attached until they are really gone, because until then they may still write into decode
  /// blocks.
  void detach(std::uint32_t rank);
  std::optional<ConnectionId> connection_of(std::uint32_t rank) const;
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(members_.size()); }

  /// Translates one message of `rank` into a report. An error means that the peer broke the protocol.
  base::Status on_frame(std::uint32_t rank, const ipc::Frame& frame);

  void start_prefill(const RequestState& request, const cluster::StartPrefill& action) override;
  void start_audit(model::RequestId id, std::uint32_t rank, const DriftAudit& audit) override;
  void send_embeddings(const RequestState& request, const cluster::SendEmbeddings& action) override;
  void send_target(const RequestState& request, const cluster::SendTarget& action, const std::string& segment,
                   const RequestState::Reservation& room) override;
  void reserve(const cluster::Reserve& action) override;
  void start_decode(const RequestState& request, const cluster::StartDecode& action) override;
  void encode(const RequestState& request, const cluster::StartEncode& action) override;
  void abort(const cluster::Abort& action) override;
  void shutdown() override;
  std::vector<MemberStatus> members() const override;
  std::string segment_of(std::uint32_t rank) const override;

 private:
  struct Member {
    std::optional<ConnectionId> connection;
    bool condemned = false;  // of a formation that has lost a rank
    std::string segment;
    MemberStatus status;
  };
  template <class M>
  void send(std::uint32_t rank, const M& message);
  template <class M>
  base::Status translate(std::uint32_t rank, const ipc::Frame& frame);
  void on(std::uint32_t rank, const wire::PrefillStep& message);
  void on(std::uint32_t rank, const wire::PrefillDone& message);
  void on(std::uint32_t rank, const wire::RequestFailed& message);
  void on(std::uint32_t rank, const wire::Reserved& message);
  void on(std::uint32_t rank, const wire::DecodeStep& message);
  void on(std::uint32_t rank, const wire::Preempted& message);
  void on(std::uint32_t rank, const wire::Released& message);
  void on(std::uint32_t rank, const wire::Idle& message);
  void on(std::uint32_t rank, const wire::Encoded& message);
  void on(std::uint32_t rank, const wire::EncodeFailed& message);
  cluster::Place place(std::uint32_t rank) const { return {role_, engine_, rank}; }
  model::RankId rank_id(std::uint32_t rank) const { return {engine_, rank}; }
  model::EncoderId encoder_id(std::uint32_t rank) const { return place(rank).encoder_id(); }

  model::Role role_;
  model::EngineId engine_;
  ControlServer& server_;
  OnReport on_report_;
  std::vector<Member> members_;
};

}  // namespace trimtab::agents
