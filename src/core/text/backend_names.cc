#include "core/text/backend_names.h"

#include <algorithm>

#include "core/text/thrown_by.h"

namespace regard {

bool contains(const std::vector<BackendRef>& refs, const BackendRef& ref) noexcept {
  return std::find(refs.begin(), refs.end(), ref) != refs.end();
}

std::string join_backends(const std::vector<BackendRef>& refs) {
  std::string out;
  for (const BackendRef& ref : refs) {
    if (!out.empty()) out += ',';
    out += to_string(ref);
  }
  return out;
}

Expected<std::vector<BackendRef>> parse_backend_list(std::string_view text) {
  std::vector<BackendRef> refs;
  while (true) {
    const std::size_t comma = text.find(',');
    Expected<BackendRef> ref = parse_backend(text.substr(0, comma));
    if (!ref) return unless_out_of_memory(ref.status());
    if (!contains(refs, *ref)) refs.push_back(*ref);
    if (comma == std::string_view::npos) return refs;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace regard
