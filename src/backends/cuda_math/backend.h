#pragma once

#include "regard/backend.h"

namespace regard::cuda_math {

const Backend& backend();

}  // namespace regard::cuda_math
