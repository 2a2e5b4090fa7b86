#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "regard/dtype.h"
#include "regard/status.h"
#include "regard/tensor.h"
#include "tools/files/mapped_bytes.h"
#include "tools/files/quote.h"

// Safetensors files: 8 bytes of header length, a JSON header, the tensors' bytes. Read through a
// mapping with every bound checked, written so that the file appears whole or not at all.

namespace regard::safetensors {

inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // what the reference reader accepts
inline constexpr std::string_view kMetadataKey = "__metadata__";

using Metadata = std::map<std::string, std::string, std::less<>>;

/// A tensor inside a file; `data` points into the bytes that were parsed and is aligned for dtype.
struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::int64_t size_bytes = 0;
};

struct Contents {
  std::vector<TensorEntry> tensors;  // in the header's order
  Metadata metadata;

  const TensorEntry* find(std::string_view name) const noexcept;
};

/// Parses a whole file that lies in memory, `file` aligned to 8 bytes. Refuses whatever the format
/// forbids: holes, overlaps, duplicate names, sizes that do not match shapes, trailing bytes.
Expected<Contents> parse(std::span<const std::byte> file);

/// A dense view of an entry; an error for rank 0 and for ranks above kMaxRank.
Expected<TensorView> view_of(const TensorEntry& entry);

/// The name of a dtype in these files ("BF16", "F8_E4M3", ...).
const char* dtype_name(Dtype dtype) noexcept;

using files::quote;

/// A file mapped into memory. Its bytes stay valid while it lives, also when the path is replaced.
class MappedFile {
 public:
  static Expected<MappedFile> open(const std::string& path);

  const Contents& contents() const noexcept { return contents_; }

 private:
  MappedFile(files::MappedBytes bytes, Contents contents)
      : bytes_(std::move(bytes)), contents_(std::move(contents)) {}
  files::MappedBytes bytes_;
  Contents contents_;
};

/// A tensor to be written: dense, row-major.
struct TensorToWrite {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

/// What a file starts with, and the order in which the tensors' bytes follow it.
struct EncodedHeader {
  std::string bytes;  // length field included, padded so that data starts at a multiple of 8
  std::vector<std::size_t> order;
  std::int64_t data_bytes = 0;
};

/// Wide element types come first, so that every tensor is aligned without holes.
Expected<EncodedHeader> encode_header(std::span<const TensorToWrite> tensors,
                                      const Metadata& metadata);

enum class WriteResult {
  kWritten,
  kRefused,  // a path or a tensor that cannot be written: nothing was tried
  kFailed,   // the system refused (disk full, file size limit)
  kInterrupted
};

struct WriteOutcome {
  WriteResult result = WriteResult::kWritten;
  std::string message;  // empty when written
};

/// Checks, before work is done for it, that `path` can become a file: its directory exists and is
/// writable, and it is a regular file or nothing yet.
WriteOutcome check_target(const std::string& path);

/// Writes a temporary file in the same directory, syncs it and renames it over `path`; on any
/// failure the temporary file is removed and `path` is as it was. `interrupted` (may be null) is
/// called between pieces of at most 1 MiB and once before the rename.
WriteOutcome write_file(const std::string& path, std::span<const TensorToWrite> tensors,
                        const Metadata& metadata, bool (*interrupted)() = nullptr);

}  // namespace regard::safetensors
