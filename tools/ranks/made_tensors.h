#pragma once

#include <cstdint>

#include "distributed/layout.h"
#include "distributed/rows.h"
#include "regard/case.h"

namespace regard::ranks {

/// Elements that any rank can make by themselves: multiples of 1/32 from -2 to 2, which every float
/// type holds exactly. `tensor`: 'q', 'k' or 'v'; the place is that of the whole problem.
struct Elements {
  std::uint64_t seed = 0;
  double at(char tensor, std::int64_t b, std::int64_t h, std::int64_t row,
            std::int64_t d) const noexcept;
};

/// [B,heads,rows of the pieces,columns] of `dtype`. Throws std::bad_alloc.
Expected<distributed::Tensor> make_rows(Context& context, const Elements& elements, char tensor,
                                        Dtype dtype, const std::vector<std::int64_t>& shape,
                                        const std::vector<distributed::Piece>& pieces);

/// A row of out in double precision, written out here: no code of the library, and no memory for
/// keys. `heads_per_group` query heads share a head of keys.
struct Reference {
  const AttentionParams& params;  // of the whole problem
  Elements elements;
  std::int64_t shift = 0;  // query i stands at key i + shift
  std::vector<double> row(std::int64_t b, std::int64_t h, std::int64_t query) const;
};

}  // namespace regard::ranks
