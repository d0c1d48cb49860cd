#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <string>
#include <vector>

#include "swap_in/backend.h"

namespace trimtab::swap_in::cuda {

inline base::Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return base::fail(base::Code::kIo, std::string{what} + ": " + cudaGetErrorString(error), "swap_in/cuda");
}

/// What the three backends share: a stream of high priority, and markers that are events on it.
class StreamBackend : public Backend {
 public:
  ~StreamBackend() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (const Recorded& recorded : recorded_) cudaEventDestroy(recorded.event);
    for (cudaEvent_t event : spare_) cudaEventDestroy(event);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  base::Status open(int device) {
    device_ = device;
    TRIMTAB_TRY(check(cudaSetDevice(device), "cudaSetDevice"));
    int least = 0, greatest = 0;
    TRIMTAB_TRY(
        check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
    return check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreate");
  }

  base::Result<Marker> mark() override {
    cudaEvent_t event = nullptr;
    if (!spare_.empty()) {
      event = spare_.back();
      spare_.pop_back();
    } else {
      TRIMTAB_TRY(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
    }
    const base::Status recorded = check(cudaEventRecord(event, stream_), "cudaEventRecord");
    if (!recorded) {
      spare_.push_back(event);
      return tl::unexpected<base::Error>(recorded.error());
    }
    recorded_.push_back({++last_, event});
    return last_;
  }

  base::Result<bool> reached(Marker marker) override {
    while (!recorded_.empty() && recorded_.front().marker <= marker) {
      const cudaError_t state = cudaEventQuery(recorded_.front().event);
      if (state == cudaErrorNotReady) return false;
      TRIMTAB_TRY(check(state, "cudaEventQuery"));
      retire();
    }
    return true;
  }

  base::Status wait(Marker marker) override {
    while (!recorded_.empty() && recorded_.front().marker <= marker) {
      TRIMTAB_TRY(check(cudaEventSynchronize(recorded_.front().event), "cudaEventSynchronize"));
      retire();
    }
    return {};
  }

  base::Status hold_stream(Marker marker, void* stream) override {
    for (const Recorded& recorded : recorded_)
      if (recorded.marker >= marker)
        return check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), recorded.event, 0),
                     "cudaStreamWaitEvent");
    return {};  // reached already
  }

 protected:
  cudaStream_t stream_ = nullptr;
  int device_ = 0;

 private:
  struct Recorded {
    Marker marker = 0;
    cudaEvent_t event = nullptr;
  };
  void retire() {
    spare_.push_back(recorded_.front().event);
    recorded_.pop_front();
  }
  std::deque<Recorded> recorded_;
  std::vector<cudaEvent_t> spare_;
  Marker last_ = 0;
};

}  // namespace trimtab::swap_in::cuda
