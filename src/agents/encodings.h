#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "cluster/events.h"

namespace trimtab::agents {

/// The segments that encoders were asked to write and have not answered for. An encoder may write its segment
/// after the request is gone (the abort crossed its work), so a segment is swept away only when the encoder
/// has answered, let go, or died.
class Encodings {
 public:
  void asked(model::RequestId request, std::uint32_t image, model::EncoderId encoder, std::string segment);
  /// The encoder reports this segment as written. False: it was not asked for, or not any more.
  bool written(const std::string& segment);
  /// The encoder failed the image: its segments are unlinked.
  void failed(model::EncoderId encoder, model::RequestId request, std::uint32_t image);
  /// The encoder answered the abort of the request: likewise.
  void released(model::EncoderId encoder, model::RequestId request);
  /// The encoder died: likewise for all that it had.
  void lost(model::EncoderId encoder);
  std::size_t size() const { return asked_.size(); }

 private:
  struct Asked {
    model::RequestId request;
    std::uint32_t image = 0;
    model::EncoderId encoder;
  };
  template <class Predicate>
  void sweep(Predicate gone);
  std::map<std::string, Asked> asked_;  // by segment
};

/// Removes a segment's file; one that is not there is none of our business.
void unlink_segment(const std::string& path);

}  // namespace trimtab::agents
