#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "regard/backend.h"
#include "regard/request.h"

// Small attention problems for tests of kernels: tensors between guard pages, a naive reference in
// double, and a run of one backend without the core.

namespace regard::test {

/// `bytes` of memory between two pages that fault, flush with the one behind or in front.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t bytes, bool flush_end = true, std::size_t alignment = 1);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  char* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  char* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Runs slots one after another, or each on a thread of its own.
class TestExecutor final : public Executor {
 public:
  explicit TestExecutor(bool threads) : threads_(threads) {}
  void run(int slots, Task task, void* state) override;
  int most_slots = 0;

 private:
  bool threads_;
};

struct Shape {
  std::int64_t b = 1, hq = 1, hkv = 1, sq = 1, skv = 1, d = 8, dv = 8;
};

/// A request and its memory.
class AttentionCase {
 public:
  AttentionCase(Shape shape, Dtype dtype, std::uint64_t seed);

  AttentionRequest request;
  Shape shape;
  std::mt19937_64 rng;

  /// A tensor of this shape with a random order of dimensions in memory and random padding; each
  /// extent of `broadcast` bits is 1 or has stride 0. The last dimension is dense if `dense_last`.
  TensorView tensor(Dtype dtype, std::vector<std::int64_t> extents, bool dense_last,
                    unsigned broadcast = 0);
  void fill_normal(const TensorView& view, double scale = 1.0);
  /// Booleans, true with probability `p`.
  void fill_mask(const TensorView& view, double p);
  void fill_ints(const TensorView& view, std::int64_t lo, std::int64_t hi);
  /// NaN and infinities in every K and V element that no row of its head sees.
  void poison_hidden();
  bool chance(double p) { return std::bernoulli_distribution(p)(rng); }
  std::int64_t pick(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(rng);
  }

 private:
  std::vector<std::unique_ptr<GuardedBuffer>> memory_;
};

double get(const TensorView& view, std::int64_t i0, std::int64_t i1 = 0, std::int64_t i2 = 0,
           std::int64_t i3 = 0);
void put(const TensorView& view, double value, std::int64_t i0, std::int64_t i1 = 0,
         std::int64_t i2 = 0, std::int64_t i3 = 0);

/// Whether query i of (b, h) sees key j.
bool sees(const AttentionRequest& r, std::int64_t b, std::int64_t h, std::int64_t i,
          std::int64_t j);

struct ReferenceRow {
  std::vector<double> out;
  std::vector<double> scaled, edited, probs;  // [Skv]; probs before dropout
  double lse = 0.0;
  double score_size = 0.0;  // the largest sum of |terms| of a visible score
  double max_v = 0.0;       // of visible finite values
};

ReferenceRow reference_row(const AttentionRequest& r, std::int64_t b, std::int64_t h,
                           std::int64_t i);

struct RunOptions {
  std::int32_t concurrency = 1;
  bool threads = false;
  int poison = 0xa5;    // what fills the workspace
  bool larger = false;  // planned for larger extents than the request's
  Isa isa = Isa::kScalar;
};

/// Plans and executes with exactly the stated workspace; returns the bytes of out, lse and
/// scores_out as they were written.
std::vector<char> run_backend(const Backend& backend, const AttentionRequest& request,
                              const RunOptions& options = {});

/// The same of the backward: the bytes of the gradients that are present.
std::vector<char> run_backward(const Backend& backend, const AttentionGradRequest& request,
                               const RunOptions& options = {});

/// Elements of an output in logical order, as bytes.
void append_bytes(const TensorView& view, std::vector<char>* bytes);

/// Random features on a case of this dtype. scores_out only where `scores`.
std::unique_ptr<AttentionCase> random_case(Dtype dtype, std::uint64_t seed, bool scores);

}  // namespace regard::test
