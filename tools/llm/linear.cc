#include "tools/llm/linear.h"

#include <algorithm>
#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "tools/llm/few_rows.h"
#include "tools/llm/row_memory.h"
#include "tools/llm/rows.h"

namespace llm {
namespace {

using regard::Dtype;
using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// From more rows on oneDNN is faster: it copies row-major weights into its own order first, which
// costs as much as reading them two to three times.
constexpr std::int64_t kRowsOfOneDnn = 2 * kFewRows + 1;

Type type_of(Dtype dtype) { return dtype == Dtype::kBf16 ? Type::bf16 : Type::f32; }

/// Memory of all weights in large pieces.
class Arena {
 public:
  std::byte* allocate(std::int64_t bytes) {
    const std::int64_t size = (bytes + kAlign - 1) / kAlign * kAlign;
    if (size > free_) {
      const std::int64_t piece = std::max(size, kPiece);
      next_ = pieces_.emplace_back(allocate_rows(piece)).get();
      free_ = piece;
    }
    std::byte* const made = next_;
    next_ += size;
    free_ -= size;
    return made;
  }

 private:
  static constexpr std::int64_t kAlign = 64, kPiece = 32 << 20;
  std::vector<RowMemory> pieces_;
  std::byte* next_ = nullptr;
  std::int64_t free_ = 0;
};

}  // namespace

struct MatrixEngine::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  Arena weights;
  std::vector<float> few_rows;  // x as f32
  // By type, outputs, inputs and rows: the layers of a model share them. Making one takes oneDNN
  // longer than small products take, and prompts have many lengths.
  std::map<std::tuple<Dtype, std::int64_t, std::int64_t, std::int64_t>, dnnl::matmul> products;
};

MatrixEngine::MatrixEngine() : impl_(std::make_unique<Impl>()) {}
MatrixEngine::~MatrixEngine() = default;

bool MatrixEngine::has_bf16() const noexcept {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto avx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return (isa & avx512) == avx512;
}

struct Linear::Impl {
  MatrixEngine::Impl* engine;
  Dtype dtype;
  std::int64_t outputs, inputs;
  std::byte* weights;

  dnnl::memory::desc x_of(std::int64_t rows) const {
    return {{rows, inputs}, type_of(dtype), Tag::ab};
  }
  dnnl::memory::desc y_of(std::int64_t rows) const { return {{rows, outputs}, Type::f32, Tag::ab}; }
  dnnl::memory::desc transposed() const { return {{inputs, outputs}, type_of(dtype), Tag::ba}; }

  const dnnl::matmul& product(std::int64_t rows) const {
    const auto key = std::tuple(dtype, outputs, inputs, rows);
    const auto found = engine->products.find(key);
    if (found != engine->products.end()) return found->second;
    const dnnl::matmul::primitive_desc desc(
        dnnl::matmul::desc(x_of(rows), transposed(), y_of(rows)), engine->engine);
    return engine->products.emplace(key, dnnl::matmul(desc)).first->second;
  }

  void multiply_few(const void* x, std::int64_t rows, float* y) const {
    std::vector<float>& wide = engine->few_rows;
    wide.resize(std::max(wide.size(), static_cast<std::size_t>(rows * inputs)));
    convert_rows({const_cast<void*>(x), dtype, inputs}, {wide.data(), Dtype::kF32, inputs}, rows,
                 inputs);
    for (std::int64_t first = 0; first < rows; first += kFewRows) {
      multiply_few_rows(weights, dtype, outputs, inputs, wide.data() + first * inputs,
                        std::min(kFewRows, rows - first), y + first * outputs);
    }
  }
};

Linear::Linear(const MatrixEngine& engine, Dtype dtype, std::int64_t outputs, std::int64_t inputs,
               const float* weights)
    : impl_(new Impl{&engine.impl(), dtype, outputs, inputs, nullptr}) {
  impl_->weights = engine.impl().weights.allocate(bytes());
  convert_rows({const_cast<float*>(weights), Dtype::kF32, inputs}, {impl_->weights, dtype, inputs},
               outputs, inputs);
}

Linear::Linear(Linear&&) noexcept = default;
Linear::~Linear() = default;

void Linear::run(const void* x, std::int64_t rows, float* y) const {
  if (rows < kRowsOfOneDnn) return impl_->multiply_few(x, rows, y);
  const dnnl::engine& cpu = impl_->engine->engine;
  const dnnl::memory from(impl_->x_of(rows), cpu, const_cast<void*>(x));
  const dnnl::memory by(impl_->transposed(), cpu, impl_->weights);
  const dnnl::memory to(impl_->y_of(rows), cpu, y);
  impl_->product(rows).execute(impl_->engine->stream,
                               {{DNNL_ARG_SRC, from}, {DNNL_ARG_WEIGHTS, by}, {DNNL_ARG_DST, to}});
  impl_->engine->stream.wait();
}

std::int64_t Linear::bytes() const noexcept {
  return impl_->outputs * impl_->inputs * regard::size_of(impl_->dtype);
}

}  // namespace llm
