#pragma once

#include <cstdint>

#include "regard/dtype.h"

// The oracle's own reading and writing of numbers. Only the enumerators and sizes of
// regard/dtype.h are used, none of its codecs: a wrong codec must not be wrong twice.

namespace regard::oracle {

/// The value of one element of `dtype`; bool and integers as numbers.
double decode(const void* element, Dtype dtype);

/// Stores `value` as one element, rounded to nearest even; past the largest finite value: infinity
/// (NaN for f8e4m3). Integers saturate.
void encode(double value, void* element, Dtype dtype);

/// `value` rounded to `dtype` and back.
double round_to(double value, Dtype dtype);

/// Half the distance from 1 to the next number: f64 2^-53, f32 2^-24, f16 2^-11, bf16 2^-8; 0 for
/// integers.
double unit_roundoff(Dtype dtype);

/// The smallest finite number, "finfo.min" of Python's libraries.
double lowest(Dtype dtype);

/// Half of the smallest positive number (of f64, all of it, since half is no double): what rounding
/// to `dtype` may lose near zero.
double half_of_smallest(Dtype dtype);

}  // namespace regard::oracle
