#include <fmt/format.h>

#include <utility>

#include "agents/host.h"
#include "base/check.h"

namespace trimtab::agents {

namespace {

std::string place_name(const cluster::Place& place) {
  const bool vision = place.role == model::Role::kVision;
  return fmt::format("{} {} {} {} {}", role_name(place.role), vision ? "machine" : "engine",
                     place.engine.value, vision ? "encoder" : "rank", place.rank);
}

}  // namespace

ReferenceAgent& Host::agent(model::Role role, model::EngineId engine) {
  const auto found = agents_.find({role, engine});
  TRIMTAB_CHECK(found != agents_.end(), "an engine that is not in the configuration");
  return *found->second;
}

void Host::on_frame(ConnectionId connection, const ipc::Frame& frame) {
  const auto peer = peers_.find(connection);
  if (peer == peers_.end() && !state_peers_.contains(connection)) {
    if (const auto status = welcome(connection, frame); !status) {
      warn("refused a connection: " + status.error().message);
      server_.close(connection, status.error().message);
    }
    return;
  }
  if (peer == peers_.end()) return server_.close(connection, "a state host has nothing more to say");
  const cluster::Place place = peer->second;
  const auto status = agent(place.role, place.engine).on_frame(place.rank, frame);
  if (!status) server_.close(connection, "it broke the protocol: " + status.error().message);
}

base::Status Host::check(const wire::Hello& hello) const {
  const auto refuse = [](std::string why) {
    return base::fail(base::Code::kInvalidArgument, std::move(why), "agents");
  };
  const cluster::Place place{hello.role, model::EngineId{hello.engine}, hello.rank};
  const auto found = agents_.find({hello.role, model::EngineId{hello.engine}});
  if (found == agents_.end() || hello.rank >= found->second->ranks()) {
    return refuse(
        fmt::format("{} is not in the configuration ({})", place_name(place), options_.config.path));
  }
  if (hello.role == model::Role::kVision) return {};
  if (hello.blocks_total == 0) return refuse(place_name(place) + " offers 0 KV blocks");
  if (model_fingerprint_ != 0 && hello.model_fingerprint != model_fingerprint_) {
    return refuse(
        fmt::format("{} runs model {:016x}, the others {:016x}: point all of them at the same weights file",
                    place_name(place), hello.model_fingerprint, model_fingerprint_));
  }
  return {};
}

base::Status Host::welcome(ConnectionId connection, const ipc::Frame& frame) {
  if (wire::type_of(frame) == wire::Type::kStateHello) return welcome_state(connection, frame);
  const auto hello = wire::from_frame<wire::Hello>(frame);
  if (!hello) return tl::unexpected(hello.error());
  TRIMTAB_TRY(check(*hello));
  if (hello->role != model::Role::kVision && model_fingerprint_ == 0)
    model_fingerprint_ = hello->model_fingerprint;
  const cluster::Place place{hello->role, model::EngineId{hello->engine}, hello->rank};
  ReferenceAgent& engine = agent(hello->role, place.engine);
  // A restarted rank can be faster than the news of its predecessor's end.
  if (const auto old = engine.connection_of(hello->rank)) part(*old, "its successor is here");
  peers_[connection] = place;
  engine.attach(connection, *hello);
  return {};
}

base::Status Host::welcome_state(ConnectionId connection, const ipc::Frame& frame) {
  const auto hello = wire::from_frame<wire::StateHello>(frame);
  if (!hello) return tl::unexpected(hello.error());
  if (!states_ || hello->machine >= options_.config.window_state.machines) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("state machine {} is not in the configuration ({})", hello->machine,
                                  options_.config.path),
                      "agents");
  }
  for (auto old = state_peers_.begin(); old != state_peers_.end();) {
    // A restarted one can be faster than the news of its predecessor's end.
    if (old->second != hello->machine) {
      ++old;
      continue;
    }
    server_.close(old->first, "its successor is here");
    old = state_peers_.erase(old);
  }
  state_peers_[connection] = hello->machine;
  states_->joined(*hello);
  return {};
}

void Host::on_closed(ConnectionId connection, const std::string& why) {
  if (const auto state = state_peers_.find(connection); state != state_peers_.end()) {
    warn(fmt::format("lost the window states of machine {}: {}", state->second, why));
    states_->lost(state->second);
    state_peers_.erase(state);
    return;
  }
  part(connection, why);
}

void Host::part(ConnectionId connection, const std::string& why) {
  const auto found = peers_.find(connection);
  if (found == peers_.end()) return;
  const cluster::Place place = found->second;
  peers_.erase(found);
  server_.close(connection, why);
  warn(fmt::format("lost {}: {}", place_name(place), why));
  metrics_.on_lost(place);
  if (place.role == model::Role::kVision) encodings_.lost(place.encoder_id());
  agent(place.role, place.engine).detach(place.rank);
}

bool Host::prepare(const Report& report) {
  if (take_audit(report)) return false;
  if (const auto* step = std::get_if<cluster::PrefillStepped>(&report.event)) {
    metrics_.on_prefill_step(*step);
  } else if (const auto* done = std::get_if<cluster::PrefillDone>(&report.event)) {
    settle_hit(report, *done);
    count_swap_in(report, done->id);
  } else if (const auto* reserved = std::get_if<cluster::Reserved>(&report.event)) {
    if (RequestState* request = find(reserved->id); request != nullptr && reserved->granted)
      request->reserved[reserved->from] = {report.blocks, report.state_slot};
  } else if (const auto* encoded = std::get_if<cluster::Encoded>(&report.event)) {
    return keep_image(report, *encoded);
  } else if (const auto* failed = std::get_if<cluster::EncodeFailed>(&report.event)) {
    encodings_.failed(failed->from, failed->id, failed->image);
  } else if (const auto* released = std::get_if<cluster::Released>(&report.event)) {
    if (released->from.role == model::Role::kVision)
      encodings_.released(released->from.encoder_id(), released->id);
  }
  return true;
}

bool Host::keep_image(const Report& report, const cluster::Encoded& event) {
  TRIMTAB_CHECK(report.image.has_value());
  const EncodedImage& image = *report.image;
  // A segment that we did not ask for is not ours to touch.
  if (!encodings_.written(image.segment)) return false;
  RequestState* request = find(event.id);
  ImageState* kept = nullptr;
  if (request != nullptr && event.image < request->images.size()) kept = &request->images[event.image];
  if (kept == nullptr || kept->segment != image.segment) {
    unlink_segment(image.segment);  // the request ended, or has been given to another encoder since
    return kept == nullptr;
  }
  kept->rows = image.rows;
  kept->hidden = image.hidden;
  log({io::ImageEntry{event.id, now_, event.image, image.rows, image.text_tokens, image.truncated_tokens,
                      image.token_ids}});
  return true;
}

}  // namespace trimtab::agents
