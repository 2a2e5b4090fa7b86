#pragma once

#include "regard/backend.h"

namespace regard::cuda_efficient {

const Backend& backend();

}  // namespace regard::cuda_efficient
