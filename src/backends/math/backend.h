#pragma once

#include "regard/backend.h"

namespace regard::math {

/// The unfused reference on CPUs; lives as long as the program.
const Backend& backend();

}  // namespace regard::math
