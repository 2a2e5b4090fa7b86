#pragma once

#include <string>
#include <string_view>

namespace regard::files {

/// Text from a file made fit for a message: quoted, control characters and non-ASCII escaped, long
/// text cut. A hostile name must not reach a terminal as it is.
std::string quote(std::string_view text);

}  // namespace regard::files
