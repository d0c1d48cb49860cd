#pragma once

#include <cstdint>
#include <string>

namespace trimtab::engine {

/// `trimtab logits`: the model's logits for given tokens, computed in this process alone.
struct LogitsOptions {
  std::string model_path;
  std::string tokens_path;     // a JSON array of token ids; "-" reads standard input
  std::string out_path;        // raw little-endian f32 [rows][vocabulary]; empty: none
  bool all_positions = false;  // a row for every token instead of the last one only
  std::uint32_t top = 5;       // printed for the last token
  std::uint32_t chunk_tokens = 512;
  std::uint32_t ffn_experts = 8;
  bool f32_cache = false;  // keys and values unrounded, instead of the f16 that ranks keep
};

/// Returns a process exit code; errors go to standard error in one line.
int logits_command(const LogitsOptions& options);

}  // namespace trimtab::engine
