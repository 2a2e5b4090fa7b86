#pragma once

#include "errors.h"
#include "regard/block_mask.h"

namespace regard::python {

/// Null where the object is no regard.BlockMask.
const BlockMask* block_mask_in(PyObject* object);

void bind_block_mask(nb::module_& module);

}  // namespace regard::python
