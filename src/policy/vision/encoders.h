#pragma once

#include <map>
#include <vector>

#include "policy/vision/vision.h"

namespace trimtab::policy {

/// The accounting that all vision policies share: which encoders live, and what each has in flight. A few
/// encoders and tens of jobs, so ordered maps are fast enough and give the order that ties need.
class EncoderLedger : public VisionPolicy {
 public:
  void add_encoder(model::EncoderId encoder) final;
  std::vector<VisionJob> remove_encoder(model::EncoderId encoder) final;
  std::vector<VisionJob> machine_lost(model::MachineId machine) final;
  void set_open(model::MachineId machine, bool open) final;
  void started(VisionJob job, model::EncoderId encoder, std::int64_t patches) final;
  bool finished(VisionJob job) final;
  std::int64_t patches_in_flight(model::EncoderId encoder) const final;
  std::size_t jobs_known() const final { return jobs_.size(); }

 protected:
  struct Machine {
    model::MachineId id;
    bool open = true;
    std::vector<std::uint32_t> encoders;  // ascending
    std::vector<std::int64_t> patches;    // in flight, beside `encoders`
  };
  /// Machines that take new work, by id.
  const std::vector<std::size_t>& open_machines() const { return open_; }
  const Machine& machine(std::size_t index) const { return machines_[index]; }
  /// On one machine: fewest patches in flight, then id. Fills the reason's part about it.
  model::EncoderId lightest_of(const Machine& machine, VisionReason& reason) const;

 private:
  struct Job {
    model::EncoderId encoder;
    std::int64_t patches = 0;
  };
  Machine* find(model::MachineId id);
  const Machine* find(model::MachineId id) const;
  std::int64_t* in_flight(model::EncoderId encoder);
  std::vector<VisionJob> drop_jobs(model::EncoderId encoder);
  void list_open();

  std::vector<Machine> machines_;  // by id
  std::vector<std::size_t> open_;
  std::map<VisionJob, Job> jobs_;
};

}  // namespace trimtab::policy
