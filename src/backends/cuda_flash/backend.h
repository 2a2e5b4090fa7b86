#pragma once

#include "regard/backend.h"

namespace regard::cuda_flash {

const Backend& backend();

}  // namespace regard::cuda_flash
