#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "regard/request.h"

// docs/semantics.md row by row: problems small enough for pencil and paper, with the numbers that
// follow typed in. The oracle and every backend are held to them.

namespace regard::test {

/// Numbers of a tensor in logical order, and its shape; an empty shape: the tensor is absent.
struct Values {
  std::vector<double> numbers;
  std::vector<std::int64_t> shape;
};

struct Literal {
  std::string name;
  Values q, k, v;
  AttentionOptions options;
  Values mask, bias, alibi, sinks, segments_q, segments_kv, lens_q, lens_kv, offsets;
  Values descale_q, descale_k, descale_v;
  Values starts_q, starts_kv;  // of packed sequences
  Values pages, entries;       // page_table and cache_batch_idx
  Values k_new, v_new;
  Values leftpad, tree;  // cache_leftpad and tree_mask
  Values reals, ints;    // captured0, f64, and captured1, i32
  Values blocks;         // block_mask
  std::int64_t diagonal_offset = 0;
  std::uint64_t seed = 0, rng_offset = 0;
  // What must come out.
  std::vector<double> out, lse, scores;
};

/// Every row of the table; names are unique.
const std::vector<Literal>& literals();

/// A literal's tensors in `dtype`.
class LiteralProblem {
 public:
  LiteralProblem(const Literal& literal, Dtype dtype);
  AttentionRequest request;

 private:
  TensorView add(const Values& values, Dtype dtype);
  std::vector<std::unique_ptr<unsigned char[]>> memory_;
};

/// "" when `actual` is `expected`: NaN and infinities alike, numbers within `tolerance` relative to
/// max(1, |expected|).
std::string difference(const TensorView& actual, const std::vector<double>& expected,
                       double tolerance);

}  // namespace regard::test
