#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "cluster/machine.h"

namespace trimtab::cluster {

using model::Role;

namespace {

/// The image itself is at fault: no other encoder would do better.
bool is_final(base::Code code) {
  return code == base::Code::kInvalidArgument || code == base::Code::kUnsupported ||
         code == base::Code::kTooLarge;
}

}  // namespace

void Machine::encode_images(Life& life) {
  const RequestId id = life.id;
  for (std::uint32_t i = 0; i < life.images.size(); ++i) {
    ImageLife& image = life.images[i];
    if (!life.needs(image)) {
      if (image.stage == ImageStage::kReady) {
        emit(DropEmbeddings{id, i});
        image.stage = ImageStage::kIdle;
      }
      continue;
    }
    if (image.stage == ImageStage::kIdle) encode(life, i);
    if (find(id) == nullptr) return;
  }
}

void Machine::encode(Life& life, std::uint32_t image) {
  ImageLife& wanted = life.images[image];
  if (members_.engines(Role::kVision) == 0) {
    fail(life, base::Code::kUnsupported,
         "the request has an image and the configuration has no vision machine");
    return;
  }
  const policy::VisionDecision decision = vision_->decide(wanted.span.patches);
  if (!decision.encoder) {
    wanted.stage = ImageStage::kWaiting;
    images_waiting_.insert(life.id);
    return;
  }
  wanted.stage = ImageStage::kEncoding;
  wanted.encoder = *decision.encoder;
  wanted.asked_at = now_;
  vision_->started({life.id, image}, *decision.encoder, wanted.span.patches);
  hold(Place::of(*decision.encoder), life.id);
  log(life.id, [&] {
    return VisionRecord{image,
                        wanted.span.patches,
                        *decision.encoder,
                        decision.reason.machines,
                        decision.reason.patches_in_flight,
                        policy::describe(decision)};
  });
  emit(StartEncode{life.id, image, *decision.encoder});
}

void Machine::retry_waiting_images() {
  const std::set<RequestId> waiting = std::move(images_waiting_);
  images_waiting_.clear();
  for (const RequestId id : waiting) {
    Life& life = lives_.at(id);
    for (std::uint32_t i = 0; i < life.images.size(); ++i) {
      if (life.images[i].stage != ImageStage::kWaiting) continue;
      life.images[i].stage = ImageStage::kIdle;
      if (life.prefill && life.needs(life.images[i])) encode(life, i);
    }
  }
}

ImageLife* Machine::encoding(RequestId id, std::uint32_t image, EncoderId from) {
  Life* life = find(id);
  if (life == nullptr || image >= life->images.size() || releases_.pending(id, Place::of(from)))
    return nullptr;
  ImageLife& found = life->images[image];
  return found.stage == ImageStage::kEncoding && found.encoder == from ? &found : nullptr;
}

/// The encoder is done with one image of the request; it may still have others of it.
void Machine::encoder_let_go(Life& life, std::uint32_t image) {
  vision_->finished({life.id, image});
  const EncoderId encoder = life.images[image].encoder;
  for (std::uint32_t i = 0; i < life.images.size(); ++i) {
    const ImageLife& other = life.images[i];
    if (i != image && other.stage == ImageStage::kEncoding && other.encoder == encoder) return;
  }
  unhold(Place::of(encoder), life.id);
}

void Machine::on(const Encoded& event) {
  spoke(Place::of(event.from));
  ImageLife* image = encoding(event.id, event.image, event.from);
  if (image == nullptr) {
    emit(DropEmbeddings{event.id, event.image});
    return;
  }
  Life& life = *find(event.id);
  encoder_let_go(life, event.image);
  log(life.id, [&] { return EncodedRecord{event.image, event.from, true, event.actual, ""}; });
  image->stage = ImageStage::kReady;
  if (life.stage == Stage::kPrefilling) {
    send_ready_images(life);
  } else if (life.stage == Stage::kDecoding) {
    drop_ready_images(life);
  }
}

void Machine::send_ready_images(Life& life) {
  for (std::uint32_t i = 0; i < life.images.size(); ++i) {
    ImageLife& image = life.images[i];
    if (image.stage != ImageStage::kReady || !life.needs(image)) continue;
    image.stage = ImageStage::kSent;
    emit(SendEmbeddings{life.id, i, *life.prefill});
    extend_leases(Place::of(Role::kPrefill, *life.prefill));
  }
}

void Machine::drop_ready_images(Life& life) {
  for (std::uint32_t i = 0; i < life.images.size(); ++i) {
    if (life.images[i].stage != ImageStage::kReady) continue;
    life.images[i].stage = ImageStage::kIdle;
    emit(DropEmbeddings{life.id, i});
  }
}

void Machine::on(const EncodeFailed& event) {
  spoke(Place::of(event.from));
  if (encoding(event.id, event.image, event.from) == nullptr) return;
  Life& life = *find(event.id);
  encoder_let_go(life, event.image);
  encode_failed(life, event.image, event.code, event.message);
}

void Machine::encode_failed(Life& life, std::uint32_t image, base::Code code, const std::string& message,
                            bool counts) {
  ImageLife& failed = life.images[image];
  log(life.id, [&] { return EncodedRecord{image, failed.encoder, false, now_ - failed.asked_at, message}; });
  failed.stage = ImageStage::kIdle;
  if (counts) ++failed.tries;
  if (is_final(code)) {
    fail(life, code, fmt::format("image {}: {}", image, message));
  } else if (failed.tries >= limits_.encode_tries_max) {
    fail(life, code, fmt::format("image {} failed on {} encoders, last: {}", image, failed.tries, message));
  } else if (life.prefill && life.needs(failed)) {
    encode(life, image);
  }
}

void Machine::lose_encoder(EncoderId encoder) {
  for (const policy::VisionJob& job : vision_->remove_encoder(encoder)) {
    Life* life = find(job.request);
    if (life == nullptr || encoding(job.request, job.image, encoder) == nullptr) continue;
    unhold(Place::of(encoder), job.request);
    const bool counts = !same_loss(life->images[job.image], encoder.machine);
    encode_failed(*life, job.image, base::Code::kUnavailable, "its encoder was lost", counts);
  }
}

/// Whether the image has lost an encoder of this machine before; notes it. An encoder that joined in between
/// ends that: an image that kills what encodes it must run out of tries.
bool Machine::same_loss(ImageLife& image, model::MachineId machine) const {
  if (image.lost_joins != encoders_joined_) image.lost_on.clear();
  image.lost_joins = encoders_joined_;
  if (std::ranges::find(image.lost_on, machine) != image.lost_on.end()) return true;
  image.lost_on.push_back(machine);
  return false;
}

}  // namespace trimtab::cluster
