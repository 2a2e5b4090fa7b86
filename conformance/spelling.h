#pragma once

#include "conformance/rng.h"
#include "regard/case.h"
#include "regard/request.h"

namespace regard::conformance {

/// States some of a case's windows and softcap as functions of the options instead: describe()
/// recognises them, and they are the same problem. Functions that the case has stay.
void spell_as_functions(const Case& c, Rng* rng, AttentionOptions* options);

}  // namespace regard::conformance
