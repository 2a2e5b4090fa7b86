#pragma once

#include "inputs.h"
#include "regard/expression.h"

// Score and mask functions as Python gives them: texts, or expressions of regard.score_functions.

namespace regard::python {

/// Functions as texts, and the tensors that they read; None where there is none.
struct FunctionTexts {
  nb::object score, mask, captured;
};

/// What is given as Expressions becomes texts, and the tensors that these read.
FunctionTexts function_texts(const FunctionTexts& given);

/// Raises a ValueError that shows the place of what does not fit.
Expression read_function(PyObject* text, const char* name);

/// A list of arrays as Buffers::captured0 to captured7; None is none.
void read_captured(const nb::object& list, Inputs* inputs, Buffers* buffers);

}  // namespace regard::python
