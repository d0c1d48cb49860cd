#include "text/small_model.h"

namespace trimtab::text {

namespace {

/// GPT-2's printable stand-in for a byte, as UTF-8; the others take the code points from U+0100 on in turn.
std::string stand_in(int byte, int& next) {
  const bool printable =
      (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
  const int code_point = printable ? byte : next++;
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

}  // namespace

gguf::Builder small_model(std::uint32_t hidden) {
  std::vector<std::string> tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<std::int32_t> types{3, 3, 3};
  const std::vector<std::string> merges{"h e", "l l",       "he ll", "hell o", "\xC4\xA0 hello",
                                        "o o", "\xC4\xA0 w"};
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(stand_in(byte, next));
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  types.resize(tokens.size(), 1);
  gguf::Builder builder;
  builder.add("general.architecture", "llama")
      .add("tokenizer.ggml.model", "gpt2")
      .add("tokenizer.ggml.pre", "smollm")
      .add("tokenizer.ggml.tokens", tokens)
      .add("tokenizer.ggml.token_type", types)
      .add("tokenizer.ggml.merges", merges)
      .add("tokenizer.ggml.bos_token_id", 1U)
      .add("tokenizer.ggml.eos_token_id", 2U)
      .add("tokenizer.chat_template",
           "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% "
           "endif %}");
  if (hidden > 0) {
    std::vector<float> rows(tokens.size() * hidden);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = static_cast<float>(i / hidden) + 0.5F * static_cast<float>(i % hidden);
    }
    builder.add_tensor("token_embd.weight", {hidden, tokens.size()}, rows);
  }
  return builder;
}

}  // namespace trimtab::text
