#include "tools/llm/row_memory.h"

#include <sys/mman.h>

#include <new>

namespace llm {

RowMemory allocate_rows(std::int64_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t align = static_cast<std::size_t>(bytes) < kHugePage ? 64 : kHugePage;
  const std::size_t size = (static_cast<std::size_t>(bytes) + align - 1) / align * align;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(align, size));
  if (memory == nullptr) throw std::bad_alloc();
  if (align == kHugePage) ::madvise(memory, size, MADV_HUGEPAGE);
  return RowMemory(memory);
}

}  // namespace llm
