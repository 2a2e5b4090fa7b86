#pragma once

#include "core/plan/row_reference.h"

namespace regard::math {

const RowReference& row_reference();

}  // namespace regard::math
