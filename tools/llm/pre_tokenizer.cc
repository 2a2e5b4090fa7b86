#include "tools/llm/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <utility>

#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;

// Unicode's White_Space. PCRE2's \s has U+180E besides, which is none since Unicode 6.3.
#define LLM_SPACE \
  R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"

// Splitting at digits comes first, so GPT-2's pattern sees the text between two digits alone: for
// white space before a digit, that is the end. Possessive quantifiers (++) change no match here,
// and keep one from trying shorter ones.
constexpr const char* kSmollm =
    R"(\p{N}|'(?:s|t|re|ve|m|ll|d)| ?\p{L}++| ?[^)" LLM_SPACE R"(\p{L}\p{N}]++|)"
    "[" LLM_SPACE R"(]+(?![^)" LLM_SPACE R"(\p{N}])|[)" LLM_SPACE "]+";

#undef LLM_SPACE

struct FreeMatch {
  void operator()(pcre2_match_data* match) const noexcept { pcre2_match_data_free(match); }
};

Status internal(const std::string& message) {
  return {StatusCode::kInternal, "[tokenizer] " + message};
}

std::string error_text(int code) {
  char text[160] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

}  // namespace

struct PreTokenizer::Pattern {
  pcre2_code* code = nullptr;
  ~Pattern() { pcre2_code_free(code); }
};

PreTokenizer::PreTokenizer(std::unique_ptr<Pattern> pattern) noexcept
    : pattern_(std::move(pattern)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Expected<PreTokenizer> PreTokenizer::named(std::string_view name) {
  if (name != "smollm") {
    return invalid("tokenizer", "key 'tokenizer.ggml.pre' is " + quote(name) +
                                    ", expected 'smollm', the only pre-tokeniser known here");
  }
  auto pattern = std::make_unique<Pattern>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  pattern->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kSmollm), PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (pattern->code == nullptr) {
    return internal("PCRE2 refuses the pattern at byte " + std::to_string(offset) + ": " +
                    error_text(error));
  }
  // Where there is no JIT the same matches are found, more slowly.
  static_cast<void>(pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE));
  return PreTokenizer(std::move(pattern));
}

Status PreTokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(pattern_->code, nullptr));
  if (match == nullptr) return Status::out_of_memory("tokenizer");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
  for (std::size_t at = 0; at < text.size();) {
    // The pattern matches something at every place: it is not looked for further on.
    const int found = pcre2_match(pattern_->code, subject, text.size(), at,
                                  PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, match.get(), nullptr);
    if (found < 0 || bounds[1] <= at) {
      return internal("PCRE2 matches nothing at byte " + std::to_string(at) + ": " +
                      error_text(found));
    }
    words.push_back(text.substr(at, bounds[1] - at));
    at = bounds[1];
  }
  return {};
}

}  // namespace llm
