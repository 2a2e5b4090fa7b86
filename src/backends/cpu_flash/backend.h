#pragma once

#include "regard/backend.h"

namespace regard::flash {

/// Tiled online softmax on copied tiles, the fastest on a CPU; lives as long as the program.
const Backend& backend();

}  // namespace regard::flash
