#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <utility>

#include "base/check.h"

namespace trimtab::text {

namespace {

// \s of the original patterns is Unicode's White_Space. PCRE2's \s also holds U+180E, so it is spelled out.
#define TRIMTAB_SPACE \
  R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"

// Quantifiers are possessive where giving back could never help: no input makes the matcher backtrack, so a
// word of any length costs linear time.
#define TRIMTAB_WORDS                  \
  R"('(?:[stmd]|re|ve|ll)| ?+\p{L}++)" \
  R"(| ?+[^)" TRIMTAB_SPACE R"(\p{L}\p{N}]++)"

struct Pattern {
  std::string_view name;
  std::string_view regex;
};

// "smollm" splits every digit off first and then runs GPT-2's pattern on each piece, whose end therefore
// looks like the end of the text to the look-ahead; one pattern says the same: a digit ends a run of white
// space like the end of text does.
constexpr std::array<Pattern, 2> kPatterns{{
    {"smollm", R"(\p{N}|)" TRIMTAB_WORDS R"(|[)" TRIMTAB_SPACE R"(]+(?![^)" TRIMTAB_SPACE
               R"(\p{N}])|[)" TRIMTAB_SPACE R"(]+)"},
    {"gpt-2", TRIMTAB_WORDS R"(| ?+\p{N}++|[)" TRIMTAB_SPACE R"(]+(?![^)" TRIMTAB_SPACE
                            R"(])|[)" TRIMTAB_SPACE R"(]+)"},
}};

pcre2_code* code(void* pointer) { return static_cast<pcre2_code*>(pointer); }
pcre2_match_data* match_data(void* pointer) { return static_cast<pcre2_match_data*>(pointer); }

}  // namespace

base::Result<PreTokenizer> PreTokenizer::create(std::string_view name) {
  for (const Pattern& pattern : kPatterns) {
    if (pattern.name != name) continue;
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    PreTokenizer created;
    created.code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.regex.data()), pattern.regex.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &error_offset, nullptr);
    TRIMTAB_CHECK(created.code_ != nullptr,
                  fmt::format("pattern {}: error {} at {}", name, error, error_offset));
    // Without JIT support (an unusual platform) matching falls back to the interpreter by itself.
    pcre2_jit_compile(code(created.code_), PCRE2_JIT_COMPLETE);
    return created;
  }
  return base::fail(base::Code::kUnsupported,
                    fmt::format("the model's pre-tokenizer is '{}'; 'smollm' and 'gpt-2' are known", name),
                    "text");
}

PreTokenizer::PreTokenizer(PreTokenizer&& other) noexcept : code_(std::exchange(other.code_, nullptr)) {}
PreTokenizer& PreTokenizer::operator=(PreTokenizer&& other) noexcept {
  std::swap(code_, other.code_);
  return *this;
}
PreTokenizer::~PreTokenizer() { pcre2_code_free(code(code_)); }

PreTokenizer::Scratch::Scratch(const PreTokenizer& owner)
    : match_data_(pcre2_match_data_create_from_pattern(code(owner.code_), nullptr)) {}
PreTokenizer::Scratch::Scratch(Scratch&& other) noexcept
    : match_data_(std::exchange(other.match_data_, nullptr)) {}
PreTokenizer::Scratch::~Scratch() { pcre2_match_data_free(match_data(match_data_)); }

std::size_t PreTokenizer::word_end(std::string_view text, std::size_t at, Scratch& scratch) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* data = match_data(scratch.match_data_);
  // The caller validated the text once; PCRE2 would do so again for every word.
  int count = pcre2_match(code(code_), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data, nullptr);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count =
        pcre2_match(code(code_), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
  }
  TRIMTAB_CHECK(count > 0, fmt::format("PCRE2 answered {} at byte {}", count, at));
  return pcre2_get_ovector_pointer(data)[1];
}

}  // namespace trimtab::text
