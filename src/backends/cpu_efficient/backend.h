#pragma once

#include "regard/backend.h"

namespace regard::efficient {

/// Tiled online softmax that reads its inputs in place; lives as long as the program.
const Backend& backend();

}  // namespace regard::efficient
