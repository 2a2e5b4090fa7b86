#pragma once

#include <cstdint>
#include <memory>

#include "regard/dtype.h"

namespace llm {

/// oneDNN on this machine's CPU, and the memory of weights. Products run on the OpenMP threads of
/// the thread that calls.
class MatrixEngine {
 public:
  MatrixEngine();
  ~MatrixEngine();
  /// Whether products of bf16 are faster here than those of f32: with AVX-512.
  bool has_bf16() const noexcept;

  struct Impl;
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// A matrix of weights [outputs, inputs], f32 or bf16, row-major in an engine's memory. oneDNN
/// multiplies many rows by it, multiply_few_rows() few.
class Linear {
 public:
  /// `weights` is f32 [outputs, inputs]; it is copied. The engine must outlive the matrix.
  Linear(const MatrixEngine& engine, regard::Dtype dtype, std::int64_t outputs, std::int64_t inputs,
         const float* weights);
  Linear(Linear&&) noexcept;
  ~Linear();

  /// y [rows, outputs] = x [rows, inputs] times the transposed weights; x is of the weights' type,
  /// y is f32, both dense. Not for several threads at once.
  void run(const void* x, std::int64_t rows, float* y) const;

  std::int64_t bytes() const noexcept;  // that the weights take

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm
