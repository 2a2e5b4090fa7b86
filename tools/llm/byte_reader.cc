#include "tools/llm/byte_reader.h"

#include "tools/llm/messages.h"

namespace llm {

using regard::Expected;
using regard::Status;

std::string Item::text() const {
  std::string out = kind_;
  if (count_ > 0) {
    return out + ' ' + std::to_string(index_ + 1) + " of " + std::to_string(count_);
  }
  if (name_.data() != nullptr) out += ' ' + quote(name_);
  return index_ < 0 ? out : "element " + std::to_string(index_) + " of " + out;
}

Status ByteReader::ends_inside(const Item& item) const {
  return invalid("gguf", "the file ends at byte " + std::to_string(bytes_.size()) + ", inside " +
                             item.text() + " (byte " + std::to_string(position_) + ")");
}

Expected<std::string_view> ByteReader::text(const Item& item, std::uint64_t max) {
  const Expected<std::uint64_t> length = read<std::uint64_t>(item);
  if (!length) return length.status();
  if (*length > max) {
    return invalid("gguf", item.text() + " has a string of " + std::to_string(*length) +
                               " bytes, expected at most " + std::to_string(max));
  }
  if (*length > left()) {
    return invalid("gguf", item.text() + " has a string of " + std::to_string(*length) +
                               " bytes, expected at most " + std::to_string(left()) +
                               ", the rest of the file");
  }
  const char* begin = reinterpret_cast<const char*>(bytes_.data()) + position_;
  position_ += *length;
  return std::string_view(begin, *length);
}

Expected<std::uint64_t> ByteReader::count(const Item& item, const char* what,
                                          std::uint64_t bytes_each) {
  const Expected<std::uint64_t> n = read<std::uint64_t>(item);
  if (!n) return n.status();
  if (*n > left() / bytes_each) {
    return invalid("gguf", item.text() + " states " + std::to_string(*n) + " " + what +
                               ", expected at most " + std::to_string(left() / bytes_each) +
                               " in the " + std::to_string(left()) + " bytes that follow");
  }
  return *n;
}

}  // namespace llm
