#pragma once

#include <atomic>
#include <string>

#include "base/error.h"
#include "base/units.h"
#include "model/ids.h"
#include "vision/image_header.h"

namespace trimtab::vision {

/// One encoder process (one "GPU" of a vision machine).
struct EncoderOptions {
  std::string control_socket;  // <runtime>/control.sock
  model::EncoderId id;
  std::string model_path;                      // the GGUF whose token embeddings the rows are
  std::string python = "python3";              // interpreter that has the `trimtab` package
  std::string shm_dir = "/dev/shm";            // images on their way to the OCR worker
  base::Nanos image_timeout{60'000'000'000};   // per image; a worker that takes longer is restarted
  base::Nanos start_timeout{120'000'000'000};  // importing and loading the OCR models, on a cold disk
  base::Nanos warm_after{
      1'000'000'000};  // idle time after which the worker starts; kForever = with the first image
  int nice_level = 5;  // of the worker: text streams go before images
  ImageLimits limits;
  /// Arguments after the interpreter. Tests put a failing worker here.
  std::string worker_module = "trimtab.ocr";
};

/// Serves `wire::Encode` jobs first come, first served until the control process leaves, says Shutdown or
/// `stop` turns true. The encoder is an OCR: the text it finds becomes token-embedding rows [rows, hidden]
/// f32, exactly those that the engine looks up for the same ids, cut or padded (with newlines) to the rows
/// that the image's header promised; both are counted in `Encoded`. Errors: the model or the socket cannot be
/// used.
base::Status run_encoder(const EncoderOptions& options, const std::atomic<bool>& stop);

}  // namespace trimtab::vision
