#include "distributed/layout.h"

#include <algorithm>

#include "distributed/text.h"

namespace regard::distributed {
namespace {

constexpr const char* kMakeLayout = "make_layout";

using Layouts = std::vector<std::vector<Piece>>;

/// Run x of `runs` over `document`: the first ones have a row more.
Piece run_of(const Piece& document, std::int64_t runs, std::int64_t x) {
  const std::int64_t each = document.length / runs, longer = document.length % runs;
  return {document.begin + x * each + std::min(x, longer), each + (x < longer ? 1 : 0)};
}

/// Adjacent pieces become one, so that a rank has as few as there are.
void append(std::vector<Piece>* pieces, const Piece& piece) {
  if (piece.length == 0) return;
  if (!pieces->empty() && pieces->back().begin + pieces->back().length == piece.begin) {
    pieces->back().length += piece.length;
  } else {
    pieces->push_back(piece);
  }
}

void add_zigzag(const Piece& document, Layouts* layouts) {
  const auto ranks = static_cast<std::int64_t>(layouts->size());
  for (std::int64_t r = 0; r < ranks; ++r) {
    auto& pieces = (*layouts)[static_cast<std::size_t>(r)];
    append(&pieces, run_of(document, 2 * ranks, r));
    append(&pieces, run_of(document, 2 * ranks, 2 * ranks - 1 - r));
  }
}

Status check_documents(std::int64_t seqlen, std::span<const std::int64_t> cu_seqlens) {
  if (cu_seqlens.empty()) return {};
  if (cu_seqlens.front() != 0) {
    return invalid(kMakeLayout, "cu_seqlens[0] (", cu_seqlens.front(), ") must be 0");
  }
  for (std::size_t x = 1; x < cu_seqlens.size(); ++x) {
    if (cu_seqlens[x] < cu_seqlens[x - 1]) {
      return invalid(kMakeLayout, "cu_seqlens[", x, "] (", cu_seqlens[x], ") must be at least ",
                     cu_seqlens[x - 1], ", the element before");
    }
  }
  if (cu_seqlens.back() != seqlen) {
    return invalid(kMakeLayout, "the last of cu_seqlens (", cu_seqlens.back(), ") must be ", seqlen,
                   ", the sequence's rows");
  }
  return {};
}

}  // namespace

const char* to_string(LayoutKind kind) noexcept {
  switch (kind) {
    case LayoutKind::kContiguous: return "contiguous";
    case LayoutKind::kZigzag: return "zigzag";
    case LayoutKind::kPerDocument: return "per_document";
  }
  return "unknown";
}

std::optional<LayoutKind> parse_layout(std::string_view name) noexcept {
  for (const LayoutKind kind :
       {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kPerDocument}) {
    if (name == to_string(kind)) return kind;
  }
  return std::nullopt;
}

Expected<Layouts> make_layout(LayoutKind kind, std::int64_t seqlen, int ranks,
                              std::span<const std::int64_t> cu_seqlens) try {
  if (seqlen < 0) return invalid(kMakeLayout, "seqlen (", seqlen, ") must be at least 0");
  if (ranks < 1 || ranks > (1 << 20)) {
    return invalid(kMakeLayout, "ranks (", ranks, ") must be 1 to 1048576");
  }
  if (Status s = check_documents(seqlen, cu_seqlens); !s.ok()) return s;
  Layouts layouts(static_cast<std::size_t>(ranks));
  if (kind == LayoutKind::kContiguous) {
    for (int r = 0; r < ranks; ++r) {
      append(&layouts[static_cast<std::size_t>(r)], run_of({0, seqlen}, ranks, r));
    }
  } else if (kind == LayoutKind::kZigzag || cu_seqlens.empty()) {
    add_zigzag({0, seqlen}, &layouts);
  } else {
    for (std::size_t x = 1; x < cu_seqlens.size(); ++x) {
      add_zigzag({cu_seqlens[x - 1], cu_seqlens[x] - cu_seqlens[x - 1]}, &layouts);
    }
  }
  return layouts;
} catch (const std::bad_alloc&) {
  return Status::out_of_memory(kMakeLayout);
}

std::int64_t rows_of(const std::vector<Piece>& pieces) noexcept {
  std::int64_t rows = 0;
  for (const Piece& piece : pieces) rows += piece.length;
  return rows;
}

}  // namespace regard::distributed
