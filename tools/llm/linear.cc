#include "tools/llm/linear.h"

#include <dnnl.hpp>
#include <unordered_map>

namespace llm {
namespace {

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// From this many rows oneDNN's preferred layout of weights is that of all other numbers of rows.
constexpr std::int64_t kLayoutRows = 64;

Type type_of(regard::Dtype dtype) { return dtype == regard::Dtype::kBf16 ? Type::bf16 : Type::f32; }

/// Shapes are those of x [rows, inputs], the transposed weights and y.
struct Shape {
  std::int64_t inputs, outputs;
  Type type;

  dnnl::memory::desc x(std::int64_t rows) const { return {{rows, inputs}, type, Tag::ab}; }
  dnnl::memory::desc y(std::int64_t rows) const { return {{rows, outputs}, Type::f32, Tag::ab}; }
  dnnl::memory::desc any_weights() const { return {{inputs, outputs}, type, Tag::any}; }
};

}  // namespace

struct MatrixEngine::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

MatrixEngine::MatrixEngine() : impl_(std::make_unique<Impl>()) {}
MatrixEngine::~MatrixEngine() = default;

bool MatrixEngine::has_bf16() const noexcept {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto avx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return (isa & avx512) == avx512;
}

struct Linear::Impl {
  Shape shape;
  MatrixEngine::Impl* engine;
  dnnl::memory weights;
  mutable std::unordered_map<std::int64_t, dnnl::matmul> products;  // by the number of rows

  const dnnl::matmul& product(std::int64_t rows) const {
    const auto found = products.find(rows);
    if (found != products.end()) return found->second;
    const dnnl::matmul::primitive_desc desc(
        dnnl::matmul::desc(shape.x(rows), weights.get_desc(), shape.y(rows)), engine->engine);
    return products.emplace(rows, dnnl::matmul(desc)).first->second;
  }
};

Linear::Linear(const MatrixEngine& engine, regard::Dtype dtype, std::int64_t outputs,
               std::int64_t inputs, const float* weights)
    : impl_(std::make_unique<Impl>()) {
  const dnnl::engine& cpu = engine.impl().engine;
  impl_->shape = {inputs, outputs, type_of(dtype)};
  impl_->engine = &engine.impl();
  const Shape& shape = impl_->shape;
  const dnnl::matmul::primitive_desc preferred(
      dnnl::matmul::desc(shape.x(kLayoutRows), shape.any_weights(), shape.y(kLayoutRows)), cpu);
  impl_->weights = dnnl::memory(preferred.weights_desc(), cpu);
  dnnl::memory given({{inputs, outputs}, Type::f32, Tag::ba}, cpu, const_cast<float*>(weights));
  dnnl::reorder(given, impl_->weights).execute(engine.impl().stream, given, impl_->weights);
  engine.impl().stream.wait();
}

Linear::Linear(Linear&&) noexcept = default;
Linear::~Linear() = default;

void Linear::run(const void* x, std::int64_t rows, float* y) const {
  const Shape& shape = impl_->shape;
  const dnnl::engine& cpu = impl_->engine->engine;
  const dnnl::memory from(shape.x(rows), cpu, const_cast<void*>(x)), to(shape.y(rows), cpu, y);
  impl_->product(rows).execute(
      impl_->engine->stream,
      {{DNNL_ARG_SRC, from}, {DNNL_ARG_WEIGHTS, impl_->weights}, {DNNL_ARG_DST, to}});
  impl_->engine->stream.wait();
}

std::int64_t Linear::outputs() const noexcept { return impl_->shape.outputs; }

std::int64_t Linear::bytes() const noexcept {
  return static_cast<std::int64_t>(impl_->weights.get_desc().get_size());
}

}  // namespace llm
