#pragma once

#include "regard/params.h"

namespace regard::function {

/// Functions of forms that are features by themselves become these: causal masks and windows,
/// softcap, and where(condition, score, -inf), which is a mask. The problem stays the same one. The
/// functions must be valid.
void recognise_features(AttentionParams* params);

}  // namespace regard::function
