#pragma once

#include <memory>
#include <vector>

#include "regard/context.h"
#include "tools/guide/peer.h"
#include "tools/guide/report.h"

namespace regard::guide {

/// One point's part of a round. The first call makes the tensors, which are kept.
class Turn {
 public:
  virtual ~Turn() = default;
  virtual Status take(Point* point) = 0;
};

/// The turns of a sweep's points, in their order; null where nothing is measured. `context` and
/// `peer` (null: none) outlive them.
std::vector<std::unique_ptr<Turn>> make_turns(const Sweep& sweep, Context& context, Peer* peer);

/// Batches of 8 sequences of at most 512 positions, of which `percent` are padding.
std::unique_ptr<Turn> make_padding_turn(Context& context, int percent);

/// Adds a figure of a round to the row of that name, which is made where there is none.
Measured* row_of(Point* point, const std::string& name);

}  // namespace regard::guide
