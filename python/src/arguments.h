#pragma once

#include <Python.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "regard/params.h"

// The arguments of attention, attention_backward and explain, read from CPython's own calling
// convention. A nanobind function of this many keywords takes 180 to 270 ns before its first line,
// a tenth of a small call, and its error for an unknown keyword names the overloads, not the
// keyword.

namespace regard::python {

enum Arg : int {
  kQ = 0,
  kK,
  kV,
  kAttnMask,
  kAttnBias,
  kIsCausal,
  kDiagonal,
  kWindow,
  kSoftmaxScale,
  kSoftcap,
  kScoreFunction,
  kMaskFunction,
  kCaptured,
  kScoreCallback,
  kBlockMask,
  kBlockSizeQ,
  kBlockSizeKv,
  kAlibiSlopes,
  kSinks,
  kSeqlensQ,
  kSeqlensKv,
  kSegmentIdsQ,
  kSegmentIdsKv,
  kCuSeqlensQ,
  kCuSeqlensKv,
  kMaxSeqlenQ,
  kMaxSeqlenKv,
  kLengths,
  kLengthsKv,
  kPadding,
  kPageTable,
  kCacheBatchIdx,
  kCacheLeftpad,
  kSharedPrefixKv,
  kKNew,
  kVNew,
  kTreeMask,
  kScalesK,
  kScalesV,
  kChannelScalesK,
  kScalesQ,
  kScaleLayout,
  kAllowFutureScales,
  kQuantizeProbs,
  kKDtype,
  kVDtype,
  kRotaryCos,
  kRotarySin,
  kRotaryInterleaved,
  kHadamard,
  kPositions,
  kDescaleQ,
  kDescaleK,
  kDescaleV,
  kFp8Recipe,
  kDOutDtype,
  kGradientDtype,
  kDropoutP,
  kSeed,
  kLayout,
  kBackends,
  kPolicy,
  kReturnLse,
  kReturnScores,
  kReturnSaved,
  kOutAmax,
  kOut,
  // of attention_backward alone
  kDOut,
  kSaved,
  kDLse,
  kDelta,
  kDescaleDOut,
  kScalesDOut,
  kGradientScales,
  kReturnAmax,
  kArgCount
};

/// A set of arguments: more than an integer has bits.
struct ArgSet {
  bool has[kArgCount] = {};

  friend constexpr ArgSet operator|(ArgSet a, const ArgSet& b) noexcept {
    for (int i = 0; i < kArgCount; ++i) a.has[i] = a.has[i] || b.has[i];
    return a;
  }
};

/// Which arguments a function takes.
struct Signature {
  const char* function;
  std::initializer_list<Arg> positional;
  ArgSet accepted;  // by keyword
};
constexpr ArgSet args_between(Arg first, Arg last) noexcept {
  ArgSet set;
  for (int i = first; i <= last; ++i) set.has[i] = true;
  return set;
}

/// What a vectorcall passes.
struct CallArgs {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;  // a tuple of names, or null
};

/// Borrowed; null where the caller gave nothing.
struct Arguments {
  PyObject* value[kArgCount] = {};

  /// The object, or null where it is absent or None.
  PyObject* given(Arg arg) const noexcept { return value[arg] == Py_None ? nullptr : value[arg]; }
};

const char* name_of(Arg arg) noexcept;
/// The argument of that name; kArgCount where there is none.
int arg_named(const char* name) noexcept;

/// Makes the interned names; once, before the first parse. False with a Python error set.
bool intern_argument_names() noexcept;

/// Raises TypeError for too many positional arguments, an unknown or a repeated keyword.
Arguments parse_arguments(const Signature& signature, const CallArgs& call);

// Values; each raises an error that names the argument, its value and what is accepted.
bool read_bool(PyObject* object, const char* name);
double read_double(PyObject* object, const char* name);
std::int64_t read_int64(PyObject* object, const char* name);
std::uint64_t read_uint64(PyObject* object, const char* name);
/// UTF-8 text that lives as long as the object.
const char* read_text(PyObject* object, const char* name, const char* accepted);
/// 'top_left' or 'bottom_right', which `accepted` names among what else a function takes.
Diagonal read_diagonal_word(PyObject* object, const char* accepted);
/// (left, right)
std::pair<std::int64_t, std::int64_t> read_window(PyObject* object);

}  // namespace regard::python
