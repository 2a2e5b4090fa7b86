#pragma once

#include "cuda/append_args.h"
#include "regard/status.h"

namespace regard::cuda {

/// Enqueues, on a CUDA stream, what a forward of any backend reads: the `append` of their
/// Launchers.
Status launch_append(const AppendArgs& args, void* stream);

}  // namespace regard::cuda
