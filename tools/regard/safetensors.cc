#include "tools/regard/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "tools/regard/safetensors_json.h"

namespace regard::safetensors {
namespace {

constexpr std::size_t kLengthBytes = 8;
// The format has no codes of 4 bits, the last type.
constexpr std::array<const char*, kDtypeCount - 1> kNames = {
    "F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL", "I32", "I64"};

std::optional<Dtype> parse_dtype_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

Status invalid(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[safetensors] " + message);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ',';
    if (text.size() > 80) return text + "...]";
    text += std::to_string(extent);
  }
  return text + ']';
}

/// An entry as the header states it; offsets count from the start of the data.
struct RawEntry {
  TensorEntry tensor;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Reads `[n, n, ...]`.
Expected<std::vector<std::int64_t>> read_integers(JsonReader& json, const char* what) {
  std::vector<std::int64_t> out;
  if (Status status = json.expect('[', what); !status) return status;
  if (json.accept(']')) return out;
  do {
    Expected<std::int64_t> value = json.integer("an unsigned integer");
    if (!value) return value.status();
    out.push_back(*value);
  } while (json.accept(','));
  if (Status status = json.expect(']', "',' or ']'"); !status) return status;
  return out;
}

Status read_field(JsonReader& json, const std::string& key, RawEntry& entry) {
  if (key == "dtype") {
    Expected<std::string> name = json.string("a dtype's name");
    if (!name) return name.status();
    const std::optional<Dtype> dtype = parse_dtype_name(*name);
    if (!dtype) {
      return invalid("tensor " + quote(entry.tensor.name) + " has dtype " + quote(*name) +
                     ", expected one of F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I8 U8 BOOL");
    }
    entry.tensor.dtype = *dtype;
    return {};
  }
  if (key == "shape") {
    Expected<std::vector<std::int64_t>> shape = read_integers(json, "the '[' of a shape");
    if (!shape) return shape.status();
    entry.tensor.shape = *std::move(shape);
    return {};
  }
  if (key != "data_offsets") {
    return invalid("tensor " + quote(entry.tensor.name) + " has the key " + quote(key) +
                   ", expected dtype, shape and data_offsets");
  }
  Expected<std::vector<std::int64_t>> offsets = read_integers(json, "the '[' of data_offsets");
  if (!offsets) return offsets.status();
  if (offsets->size() != 2) {
    return invalid("tensor " + quote(entry.tensor.name) + " has " +
                   std::to_string(offsets->size()) + " data_offsets, expected 2: begin and end");
  }
  entry.begin = (*offsets)[0];
  entry.end = (*offsets)[1];
  return {};
}

/// Reads a tensor's `{"dtype": ..., "shape": ..., "data_offsets": ...}`: each key once.
Status read_entry(JsonReader& json, RawEntry& entry) {
  if (Status status = json.expect('{', "the '{' of a tensor"); !status) return status;
  std::set<std::string> seen;
  if (!json.accept('}')) {
    do {
      Expected<std::string> key = json.string("a key: dtype, shape or data_offsets");
      if (!key) return key.status();
      if (!seen.insert(*key).second) {
        return invalid("tensor " + quote(entry.tensor.name) + " has the key " + quote(*key) +
                       " twice");
      }
      if (Status status = json.expect(':', "':'"); !status) return status;
      if (Status status = read_field(json, *key, entry); !status) return status;
    } while (json.accept(','));
    if (Status status = json.expect('}', "',' or '}'"); !status) return status;
  }
  if (seen.size() == 3) return {};
  return invalid("tensor " + quote(entry.tensor.name) + " has " + std::to_string(seen.size()) +
                 " keys, expected dtype, shape and data_offsets");
}

Status read_metadata(JsonReader& json, Metadata& metadata) {
  if (Status status = json.expect('{', "the '{' of __metadata__"); !status) return status;
  if (json.accept('}')) return {};
  do {
    Expected<std::string> key = json.string("a key of __metadata__");
    if (!key) return key.status();
    if (Status status = json.expect(':', "':'"); !status) return status;
    Expected<std::string> value = json.string("a string, as all of __metadata__");
    if (!value) return value.status();
    if (!metadata.emplace(*key, *std::move(value)).second) {
      return invalid("__metadata__ has the key " + quote(*key) + " twice");
    }
  } while (json.accept(','));
  return json.expect('}', "',' or '}'");
}

Status read_header(std::string_view text, Metadata& metadata, std::vector<RawEntry>& entries) {
  JsonReader json(text, static_cast<std::int64_t>(kLengthBytes));
  if (text.empty() || text.front() != '{') return json.unexpected("'{' as the first byte");
  if (Status status = json.expect('{', "'{'"); !status) return status;
  std::set<std::string> seen;
  if (!json.accept('}')) {
    do {
      Expected<std::string> name = json.string("a tensor's name");
      if (!name) return name.status();
      if (!seen.insert(*name).second) return invalid("the name " + quote(*name) + " comes twice");
      if (Status status = json.expect(':', "':'"); !status) return status;
      if (*name == kMetadataKey) {
        if (Status status = read_metadata(json, metadata); !status) return status;
        continue;
      }
      RawEntry& entry = entries.emplace_back();
      entry.tensor.name = *std::move(name);
      if (Status status = read_entry(json, entry); !status) return status;
    } while (json.accept(','));
    if (Status status = json.expect('}', "',' or '}'"); !status) return status;
  }
  return json.at_end() ? Status() : json.unexpected("only white space after the header");
}

/// Bytes of a dense tensor. Zero extents count as 1 for the overflow check, because strides are
/// products of the others.
Expected<std::int64_t> size_of_tensor(const TensorEntry& tensor) {
  std::int64_t bytes = size_of(tensor.dtype);
  bool empty = false;
  for (const std::int64_t extent : tensor.shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
      return Status(StatusCode::kOverflow, "[safetensors] tensor " + quote(tensor.name) +
                                               " has shape " + shape_text(tensor.shape) + " of " +
                                               dtype_name(tensor.dtype) +
                                               ", expected at most 2^63 - 1 bytes");
    }
  }
  return empty ? 0 : bytes;
}

/// Checks one entry against its own shape and against the data's extent, and fills in its data.
Status place(RawEntry& entry, std::span<const std::byte> data, std::int64_t data_start) {
  TensorEntry& tensor = entry.tensor;
  const auto total = static_cast<std::int64_t>(data.size());
  const std::string range =
      "data_offsets [" + std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]";
  if (entry.begin > entry.end || entry.end > total) {
    return invalid("tensor " + quote(tensor.name) + " has " + range +
                   ", expected begin <= end <= " + std::to_string(total) +
                   ", the bytes after the header");
  }
  Expected<std::int64_t> bytes = size_of_tensor(tensor);
  if (!bytes) return bytes.status();
  if (entry.end - entry.begin != *bytes) {
    return invalid("tensor " + quote(tensor.name) + " has " + range + ", expected " +
                   std::to_string(*bytes) + " bytes for " + dtype_name(tensor.dtype) +
                   shape_text(tensor.shape));
  }
  if (*bytes > 0 && (data_start + entry.begin) % size_of(tensor.dtype) != 0) {
    return invalid("tensor " + quote(tensor.name) + " starts at byte " +
                   std::to_string(data_start + entry.begin) + ", expected a multiple of " +
                   std::to_string(size_of(tensor.dtype)) + " for " + dtype_name(tensor.dtype));
  }
  tensor.data = data.data() + entry.begin;
  tensor.size_bytes = *bytes;
  return {};
}

/// The tensors cover the data from its first byte to its last, each byte once.
Status check_coverage(const std::vector<RawEntry>& entries, std::int64_t total) {
  std::vector<const RawEntry*> sorted;
  sorted.reserve(entries.size());
  for (const RawEntry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const RawEntry* a, const RawEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::int64_t next = 0;
  for (const RawEntry* entry : sorted) {
    if (entry->begin != next) {
      return invalid("tensor " + quote(entry->tensor.name) + " begins at offset " +
                     std::to_string(entry->begin) + ", expected " + std::to_string(next) +
                     (entry->begin < next ? ": it overlaps the one before it"
                                          : ": there is a hole before it"));
    }
    next = entry->end;
  }
  if (next == total) return {};
  return invalid("the tensors end at offset " + std::to_string(next) + ", expected " +
                 std::to_string(total) + ", the end of the file");
}

}  // namespace

const char* dtype_name(Dtype dtype) noexcept {
  const auto i = static_cast<std::size_t>(dtype);
  return i < kNames.size() ? kNames[i] : "?";
}

const TensorEntry* Contents::find(std::string_view name) const noexcept {
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Expected<Contents> parse(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return invalid("the file has " + std::to_string(file.size()) +
                   " bytes, expected at least 8 for the length of the header");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
  }
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    return invalid("the header's length is " + std::to_string(length) +
                   " bytes, expected at most " + std::to_string(kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    return invalid("the header's length is " + std::to_string(length) +
                   " bytes, expected at most " + std::to_string(file.size() - kLengthBytes) +
                   ", the rest of the file");
  }
  const std::span<const std::byte> header = file.subspan(kLengthBytes, length);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + length);
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());

  Contents contents;
  std::vector<RawEntry> entries;
  if (Status status = read_header(text, contents.metadata, entries); !status) return status;
  const auto data_start = static_cast<std::int64_t>(kLengthBytes + length);
  for (RawEntry& entry : entries) {
    if (Status status = place(entry, data, data_start); !status) return status;
  }
  if (Status status = check_coverage(entries, static_cast<std::int64_t>(data.size())); !status) {
    return status;
  }
  contents.tensors.reserve(entries.size());
  for (RawEntry& entry : entries) contents.tensors.push_back(std::move(entry.tensor));
  return contents;
}

Expected<TensorView> view_of(const TensorEntry& entry) {
  const std::size_t rank = entry.shape.size();
  if (rank == 0 || rank > static_cast<std::size_t>(kMaxRank)) {
    return invalid("tensor " + quote(entry.name) + " has rank " + std::to_string(rank) + " " +
                   shape_text(entry.shape) + ", expected 1 to " + std::to_string(kMaxRank));
  }
  TensorView view;
  view.data = const_cast<std::byte*>(entry.data);
  view.dtype = entry.dtype;
  view.read_only = true;
  view.rank = static_cast<std::int32_t>(rank);
  std::int64_t stride = 1;
  for (std::size_t i = rank; i-- > 0;) {
    view.shape[i] = entry.shape[i];
    view.strides[i] = stride;
    stride *= std::max<std::int64_t>(entry.shape[i], 1);  // fits: parse() checked the product
  }
  return view;
}

}  // namespace regard::safetensors
