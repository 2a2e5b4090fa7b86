#pragma once

#include "regard/context.h"

namespace regard::test {

/// A forward that summed the scores in another order saved another maximum: the backend's gradients
/// must move by as much, also where one key has nearly all of the weight and dP - delta cancels.
void expect_moved_maximum_moves_as_much(Context& context, const BackendRef& backend);

}  // namespace regard::test
