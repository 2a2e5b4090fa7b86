#pragma once

#include "regard/backend.h"

namespace regard::absent {

// Backends of the list that this build lacks: each refuses and says why.

const Backend& cuda_math();
const Backend& cuda_flash();
const Backend& cuda_efficient();
const Backend& cuda_cudnn();

}  // namespace regard::absent
