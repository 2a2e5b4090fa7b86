#pragma once

#include <vector>

#include "regard/request.h"

namespace regard::oracle {

/// The request with scales of blocks of q, k, v and d_out as one for each element, in memory that
/// is added to `memory`. Without options.scale_layout they stay, as those of u4 do.
AttentionGradRequest with_spread_scales(AttentionGradRequest request,
                                        std::vector<std::vector<char>>* memory);

}  // namespace regard::oracle
