"""The faults of mutations.py in what regard-llm reads of a model's file, and in its tokens."""

from mutation import Mutation

HOSTILE = ("llm", "GgufHostile.*")
GGUF = ("llm", "Gguf*")
DEQUANTIZE = ("llm", "Dequantize.*")
BPE = ("llm", "Bpe.*")
WORDS = ("llm", "PreTokenizer.*")
TOKENIZER = ("llm", "Tokenizer*")
SPECIALS = ("llm", "SpecialTokens.*")
CHAT = ("llm", "ChatTemplate.*")
UTF8 = ("llm", "Utf8*")
RANKS = ("llm", "RankSequence.*")

LLM_MUTATIONS = [
    Mutation("a string may pass the end of a GGUF file", "tools/llm/byte_reader.cc",
             "if (*length > left()) {", "if (*length > left() + 1) {", (HOSTILE,)),
    Mutation("a GGUF file may state one element too many", "tools/llm/byte_reader.cc",
             "if (*n > left() / bytes_each) {", "if (*n > left() / bytes_each + 1) {", (HOSTILE,)),
    Mutation("a GGUF key may come twice", "tools/llm/gguf_metadata.cc",
             "if (!out.emplace(*key, *std::move(value)).second) {",
             "out.emplace(*key, *std::move(value));\n    if (false) {", (HOSTILE,)),
    Mutation("GGUF tensors may overlap", "tools/llm/gguf.cc",
             "if (before.offset + before.bytes > sorted[i]->offset) {", "if (false) {", (HOSTILE,)),
    Mutation("a GGUF tensor may pass the end by a byte", "tools/llm/gguf.cc",
             "raw.bytes > data.size() - raw.offset)", "raw.bytes > data.size() - raw.offset + 1)", (HOSTILE,)),
    Mutation("a GGUF tensor's offset may be of any multiple", "tools/llm/gguf.cc",
             "if (raw.offset % alignment != 0) {", "if (raw.offset % 8 != 0) {", (HOSTILE,)),
    Mutation("extents of GGUF tensors are in the file's order", "tools/llm/gguf.cc",
             "tensor.shape[i] = *extent;", "tensor.shape[tensor.shape.size() - 1 - i] = *extent;", (GGUF,)),
    Mutation("elements of a GGUF tensor are not counted before its bytes", "tools/llm/gguf.cc",
             "overflow = overflow || __builtin_mul_overflow(elements, extent, &elements);",
             "elements = static_cast<std::int64_t>(static_cast<std::uint64_t>(elements) *\n"
             "                                         static_cast<std::uint64_t>(extent));", (HOSTILE,)),
    Mutation("rows are dequantised from the first", "tools/llm/dequantize.cc",
             "tensor.data.data() + first * row_blocks * format.bytes;",
             "tensor.data.data() + 0 * first * row_blocks * format.bytes;", (DEQUANTIZE,)),
    Mutation("high bits of the last scales of a K format are those of the first", "tools/llm/dequantize.cc",
             "minimum = packed[i + 4] >> 4 | (packed[i] >> 6) << 4;",
             "minimum = packed[i + 4] >> 4 | (packed[i - 4] >> 6) << 4;", (DEQUANTIZE,)),
    Mutation("pairs of one rank merge from the right", "tools/llm/bpe.cc",
             "return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);",
             "return std::tie(a.rank, b.at) > std::tie(b.rank, a.at);", (BPE,)),
    Mutation("a pair whose right token has merged still merges", "tools/llm/bpe.cc",
             "if (right.token != pair.right) continue;", "", (BPE,)),
    Mutation("the pair before a merged one is not looked for", "tools/llm/bpe.cc",
             "    consider(work, left.previous);\n", "", (BPE,)),
    Mutation("white space before a digit is split as before a letter", "tools/llm/pre_tokenizer.cc",
             R'''(\p{N}])|[)"''', R'''(])|[)"''', (WORDS,)),
    Mutation("digits stand together", "tools/llm/pre_tokenizer.cc", r'R"(\p{N}|', r'R"(\p{N}+|', (WORDS,)),
    Mutation("the shortest special token is found", "tools/llm/special_tokens.cc",
             "longest = Found{at, length + 1, begin->second};",
             "if (!longest) longest = Found{at, length + 1, begin->second};", (SPECIALS,)),
    Mutation("spellings of special tokens are these tokens in any text", "tools/llm/tokenizer.cc",
             "while (special) {", "while (special || true) {", (TOKENIZER, CHAT)),
    Mutation("overlong characters are UTF-8", "tools/llm/utf8.cc",
             "if (byte == 0xe0) return {3, byte & 0x0f, 0xa0};",
             "if (byte == 0xe0) return {3, byte & 0x0f, 0x80};", (UTF8,)),
    Mutation("the default system message is written before another", "tools/llm/chat_template.cc",
             'messages.front().role == "system"', 'messages.front().role == "System"', (CHAT,)),
    Mutation("templates that change contents are accepted", "tools/llm/chat_template.cc",
             "if (!is_chatml(*text)) {",
             "if (!is_chatml(*text) && text->find(kStart) == std::string_view::npos) {", (CHAT,)),
    Mutation("every rank keeps each new token's keys", "tools/llm/rank_sequence.cc",
             "const std::int64_t rows = distributed::rows_of(pieces_of(length_ + 1, ranks(), rank()));",
             "const std::int64_t rows = rows_ + 1;", (RANKS,)),
    Mutation("tokens of a rank's part have the positions of its rows", "tools/llm/rank_sequence.cc",
             "positions.push_back(at);", "positions.push_back(at - piece.begin);", (RANKS,)),
    Mutation("a kept key overwrites the one before", "tools/llm/rank_sequence.cc",
             "to + (h * max_rows_ + rows_ + row) * c.head_dim * size,",
             "to + (h * max_rows_ + std::max<std::int64_t>(rows_ - 1, 0) + row) * c.head_dim * size,", (RANKS,)),
    Mutation("the second element of a pair is turned back", "tools/llm/rotary.cc",
             "head[2 * x + 1] = odd * cos[x] + even * sin[x];",
             "head[2 * x + 1] = odd * cos[x] - even * sin[x];", (RANKS,)),
    Mutation("the logits of a short prompt are rank 0's own", "tools/llm/rank_sequence.cc",
             "!pieces.empty() && pieces.back().begin + pieces.back().length == length;",
             "!pieces.empty();", (RANKS,)),
    Mutation("each rank draws its own token", "tools/llm/rank_generate.cc",
             "if (drawn.is_finite == 0) return damaged_weights();",
             "if (sequence.rank() != 0) drawn.token = 0;\n  if (drawn.is_finite == 0) return damaged_weights();", (RANKS,)),
]
