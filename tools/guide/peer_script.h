#pragma once

namespace regard::guide {

/// The Python program of Peer: a line of JSON for each problem, a line of JSON back.
const char* peer_script();

}  // namespace regard::guide
