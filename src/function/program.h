#pragma once

#include <vector>

#include "regard/expression.h"
#include "semantics/function_program.h"

// Expressions compiled for kernels.

namespace regard::function {

/// A program and the memory that it points into.
struct OwnedProgram {
  std::vector<semantics::FunctionStep> steps;
  std::vector<semantics::FunctionScatter> scatters;
  semantics::FunctionProgram view;
};

struct Programs {
  OwnedProgram value;     // bools and reals
  OwnedProgram gradient;  // by the score and by gathered reals; empty where there is no score in it
};

/// Compiled at the first call; they live as long as a copy of the expression does. An expression
/// that is none, or has an error, has programs without steps.
const Programs& programs_of(const Expression& expression);

/// The steps that its derivative needs are more than kernels hold.
bool is_too_large(const Expression& expression);

}  // namespace regard::function
