#pragma once

#include "regard/backend.h"

namespace regard::cudnn {

/// cuDNN's attention graphs (docs/backends.md).
const Backend& backend();

}  // namespace regard::cudnn
