#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace regard::distributed {

/// Memory of any contents for a call's tensors and messages. Blocks of 64 KiB and more that are let
/// go are kept for later calls, up to 64 MiB in all: new memory is a page fault for each 4 KiB,
/// which takes longer than the copy into it. Throws std::bad_alloc.
std::shared_ptr<std::byte[]> make_buffer(std::size_t bytes);

/// Bytes of all buffers of the process: the most at once since restart_buffer_peak().
std::int64_t buffer_peak() noexcept;
void restart_buffer_peak() noexcept;

}  // namespace regard::distributed
