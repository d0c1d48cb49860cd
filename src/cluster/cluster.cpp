#include "cluster/cluster.h"

#include "base/check.h"
#include "cluster/machine.h"

namespace trimtab::cluster {

base::Result<std::unique_ptr<Cluster>> Cluster::make(const model::ClusterConfig& config,
                                                     const model::Profile& profile,
                                                     std::unique_ptr<TierQueue> queue) {
  auto decode = policy::make_decode_policy(policy::decode_config(config.decode));
  if (!decode) return tl::unexpected(std::move(decode).error());
  return make(config, profile, std::move(queue), std::move(*decode));
}

base::Result<std::unique_ptr<Cluster>> Cluster::make(const model::ClusterConfig& config,
                                                     const model::Profile& profile,
                                                     std::unique_ptr<TierQueue> queue,
                                                     std::unique_ptr<policy::DecodePolicy> decode) {
  TRIMTAB_CHECK(queue != nullptr && decode != nullptr);
  const std::size_t speeds = config.decode.speeds_permille.size();
  if (speeds != 0 && speeds != config.decode.groups &&
      speeds != std::size_t{config.decode.groups} * config.decode.ranks) {
    return base::fail(base::Code::kInvalidArgument,
                      "decode.speeds_permille has " + std::to_string(speeds) + " values for " +
                          std::to_string(config.decode.groups) + " groups of " +
                          std::to_string(config.decode.ranks) + " ranks; give one each or none",
                      config.path);
  }
  policy::VisionConfig vision_config;
  vision_config.seed = config.seed;
  auto vision = policy::make_vision_policy(vision_config);
  if (!vision) return tl::unexpected(std::move(vision).error());
  auto machine = std::make_unique<Machine>(
      config, profile, Machine::Parts{std::move(queue), std::move(decode), std::move(*vision)});
  return std::unique_ptr<Cluster>(new Cluster(std::move(machine)));
}

Cluster::Cluster(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {}
Cluster::~Cluster() = default;

void Cluster::step(const Event& event, Nanos now, std::vector<Action>& out) {
  machine_->step(event, now, out);
}
void Cluster::keep_records(bool keep) { machine_->keep_records(keep); }
ClusterStatus Cluster::status() const { return machine_->status(); }
Census Cluster::census() const { return machine_->census(); }
bool Cluster::ready() const { return machine_->ready(); }

}  // namespace trimtab::cluster
