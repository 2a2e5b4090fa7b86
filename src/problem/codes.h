#pragma once

#include "problem/element.h"

// How rows of a cache are quantised: docs/semantics.md.

namespace regard::problem {

/// A scale is the row's greatest magnitude over this, of the type.
REGARD_KERNEL_FN float max_code(Element type) {
  switch (type) {
    case Element::kI8: return 127.0f;
    case Element::kF8E4M3: return 448.0f;
    default: return 57344.0f;  // f8e5m2
  }
}

/// And a normal number.
REGARD_KERNEL_FN float normal_scale(float scale) { return scale < 0x1p-126f ? 0x1p-126f : scale; }

}  // namespace regard::problem
