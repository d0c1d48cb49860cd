#pragma once

#include <string>

#include "base/error.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace trimtab::gateway {

/// What turns conversations into ids: the vocabulary and the template of one model file.
struct PromptText {
  text::Tokenizer tokenizer;
  text::ChatTemplate chat;

  /// Errors name the file: kIo, kDataLoss (truncated), kUnsupported (another tokenizer or template).
  static base::Result<PromptText> load(const std::string& model_path);
  /// Part of every block key.
  std::string fingerprint() const;
};

}  // namespace trimtab::gateway
