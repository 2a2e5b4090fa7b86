#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "array.h"
#include "regard/request.h"

namespace regard::python {

/// What the binding has copied since the process began.
struct CopyCounters {
  std::uint64_t copies;
  std::uint64_t bytes;
};
CopyCounters copy_counters() noexcept;

/// How the dimensions of q, k, v and out lie in the caller's arrays.
enum class RowOrder : std::uint8_t {
  kBhsd,   // [batch, heads, positions, head_dim]
  kBshd,   // [batch, positions, heads, head_dim]
  kPacked  // [total, heads, head_dim]
};

/// The rows of k that a sequence has at most: of all its pages, or all packed ones.
std::int64_t rows_of_keys(const AttentionRequest& request) noexcept;

/// Whether an array of bytes holds codes of 4 bits, as its argument `name` ('u4', 'int4' or none)
/// states; its own type states everything else.
bool is_u4(PyObject* word, const char* name);

/// The memory of a view of u8 as rows of u4, two codes in a byte. `given` is the array in words;
/// raises where the view has another type.
TensorView as_u4(TensorView view, const std::string& name, const std::string& given);

/// Makes views of a call's arrays: without a copy where the core takes their strides, of a copy
/// where it does not. Copies are counted, and noted in words.
class Inputs {
 public:
  /// `explain_only`: a copy gets its memory but not its elements.
  Inputs(RowOrder order, bool explain_only) : order_(order), explain_only_(explain_only) {}

  /// q, k or v in the caller's order, a view as [B,H,S,D]; of packed sequences B is 1.
  TensorView tensor(PyObject* object, const char* name) { return tensor(object, name, order_); }
  TensorView tensor(PyObject* object, const char* name, RowOrder order);
  /// Codes of 4 bits, two in a byte of the array.
  TensorView packed_codes(PyObject* object, const char* name, RowOrder order);
  /// A boolean mask or a float bias that broadcasts to [B,Hq,Sq,Skv] from at most 4 dimensions.
  TensorView scores(const Array& array, const char* name, Dtype dtype_q);
  /// A tensor of any strides and its own number of dimensions, statistics of rows for one.
  TensorView any_view(const Array& array, const char* name);
  /// Integers as int32, or int64 for `wide`; `shape` is what a message says of it: "[batch]".
  TensorView integers(PyObject* object, const char* name, const char* shape, bool wide);
  /// cu_seqlens, dense: int32 or int64 as they are; a list becomes int64.
  TensorView starts(PyObject* object, const char* name);
  /// Numbers as f32.
  TensorView numbers(PyObject* object, const char* name, const char* shape);
  /// The same; one alone is [1].
  TensorView number_or_numbers(PyObject* object, const char* name, const char* shape);
  /// A result with the number of dimensions that it has.
  TensorView output(const Array& array) const;
  /// out and gradients, in the caller's order: a view as [B,H,S,D].
  TensorView output_rows(const Array& array) const;

  /// Keeps a reference for as long as the call lasts.
  void keep(nb::object owner) { owners_.push_back(std::move(owner)); }
  const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  TensorView rows_of(Array array, const char* name, RowOrder order);
  TensorView numbers_of(Array array, const char* name, const char* shape);
  Array copied(const Array& array, int typenum, const std::string& why);

  RowOrder order_;
  bool explain_only_;
  std::vector<nb::object> owners_;
  std::vector<std::string> notes_;
};

}  // namespace regard::python
