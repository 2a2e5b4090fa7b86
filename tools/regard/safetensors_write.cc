#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "tools/files/pending_file.h"
#include "tools/regard/safetensors.h"
#include "tools/regard/safetensors_json.h"

namespace regard::safetensors {
namespace {

using files::PendingFile;

Status cannot_be_written(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[safetensors] " + message);
}

Expected<std::int64_t> bytes_of(const TensorToWrite& tensor) {
  std::int64_t bytes = size_of(tensor.dtype);
  bool empty = false;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0) {
      return cannot_be_written("tensor " + quote(tensor.name) + " has the extent " +
                               std::to_string(extent) + ", expected at least 0");
    }
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
      return Status(StatusCode::kOverflow, "[safetensors] tensor " + quote(tensor.name) +
                                               " is larger than 2^63 - 1 bytes");
    }
  }
  return empty ? 0 : bytes;
}

std::string entry_json(const TensorToWrite& tensor, std::int64_t begin, std::int64_t end) {
  std::string json =
      json_string(tensor.name) + ":{\"dtype\":\"" + dtype_name(tensor.dtype) + "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) json += ',';
    json += std::to_string(tensor.shape[i]);
  }
  return json + "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

Expected<std::string> metadata_json(const Metadata& metadata) {
  std::string json = json_string(kMetadataKey) + ":{";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      return cannot_be_written("the metadata of " + quote(key) + " is not UTF-8");
    }
    if (!first) json += ',';
    first = false;
    json += json_string(key) + ":" + json_string(value);
  }
  return json + "}";
}

WriteOutcome outcome(WriteResult result, const std::string& path, const std::string& why) {
  return {result, "[safetensors] output " + quote(path) + ": " + why};
}

/// Writes header and tensors; nullopt when all is written.
std::optional<WriteOutcome> write_all(PendingFile& file, const std::string& path,
                                      const EncodedHeader& header,
                                      std::span<const TensorToWrite> tensors,
                                      bool (*interrupted)()) {
  constexpr std::size_t kPieceBytes = 1 << 20;
  const auto stop = [&] { return interrupted != nullptr && interrupted(); };
  const auto put = [&](const void* data, std::size_t size) -> std::optional<WriteOutcome> {
    for (std::size_t done = 0; done < size;) {
      if (stop()) return outcome(WriteResult::kInterrupted, path, "interrupted, not written");
      const std::size_t piece = std::min(kPieceBytes, size - done);
      const std::string error = file.write(static_cast<const char*>(data) + done, piece);
      if (!error.empty()) return outcome(WriteResult::kFailed, path, error);
      done += piece;
    }
    return std::nullopt;
  };
  if (auto failed = put(header.bytes.data(), header.bytes.size())) return failed;
  for (const std::size_t i : header.order) {
    const auto size = static_cast<std::size_t>(*bytes_of(tensors[i]));
    if (auto failed = put(tensors[i].data, size)) return failed;
  }
  if (const std::string error = file.sync(); !error.empty()) {
    return outcome(WriteResult::kFailed, path, error);
  }
  if (stop()) return outcome(WriteResult::kInterrupted, path, "interrupted, not written");
  return std::nullopt;
}

}  // namespace

Expected<EncodedHeader> encode_header(std::span<const TensorToWrite> tensors,
                                      const Metadata& metadata) {
  EncodedHeader out;
  out.order.resize(tensors.size());
  std::iota(out.order.begin(), out.order.end(), std::size_t{0});
  std::stable_sort(out.order.begin(), out.order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].dtype) > size_of(tensors[b].dtype);
  });

  std::string json = "{";
  if (!metadata.empty()) {
    Expected<std::string> text = metadata_json(metadata);
    if (!text) return text.status();
    json += *text;
  }
  std::set<std::string_view> seen{kMetadataKey};
  for (const std::size_t i : out.order) {
    const TensorToWrite& tensor = tensors[i];
    if (!is_utf8(tensor.name))
      return cannot_be_written("the name " + quote(tensor.name) + " is not UTF-8");
    if (!seen.insert(tensor.name).second) {
      return cannot_be_written("the name " + quote(tensor.name) + " is taken");
    }
    Expected<std::int64_t> bytes = bytes_of(tensor);
    if (!bytes) return bytes.status();
    const std::int64_t begin = out.data_bytes;
    if (__builtin_add_overflow(begin, *bytes, &out.data_bytes)) {
      return Status(StatusCode::kOverflow, "[safetensors] more than 2^63 - 1 bytes of tensors");
    }
    if (json.size() > 1) json += ',';
    json += entry_json(tensor, begin, out.data_bytes);
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > static_cast<std::size_t>(kMaxHeaderBytes)) {
    return cannot_be_written("the header would have " + std::to_string(json.size()) +
                             " bytes, expected at most " + std::to_string(kMaxHeaderBytes));
  }
  for (int i = 0; i < 8; ++i) {
    out.bytes += static_cast<char>((static_cast<std::uint64_t>(json.size()) >> (8 * i)) & 0xff);
  }
  out.bytes += json;
  return out;
}

WriteOutcome check_target(const std::string& path) {
  const std::string why = files::why_not_writable(path);
  return why.empty() ? WriteOutcome{} : outcome(WriteResult::kRefused, path, why);
}

WriteOutcome write_file(const std::string& path, std::span<const TensorToWrite> tensors,
                        const Metadata& metadata, bool (*interrupted)()) {
  if (WriteOutcome refused = check_target(path); refused.result != WriteResult::kWritten) {
    return refused;
  }
  Expected<EncodedHeader> header = encode_header(tensors, metadata);
  if (!header) return {WriteResult::kRefused, header.status().message()};
  const std::string target = files::resolve_links(path);
  PendingFile file;
  if (const std::string error = file.create(target); !error.empty()) {
    return outcome(WriteResult::kFailed, path, error);
  }
  if (auto failed = write_all(file, path, *header, tensors, interrupted)) return *failed;
  if (const std::string error = file.commit(target); !error.empty()) {
    return outcome(WriteResult::kFailed, path, error);
  }
  return {};
}

}  // namespace regard::safetensors
