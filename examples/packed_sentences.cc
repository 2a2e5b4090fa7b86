// Real sentences of several lengths: padded with lengths, padded with a mask, and packed. The
// queries, keys and values are those of the encoder all-MiniLM-L6-v2.
//
//   packed_sentences examples/data/minilm.safetensors

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "regard/attention.h"
#include "regard/lengths.h"

namespace {

using regard::check;
using regard::TensorView;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "packed_sentences: %s\n", what.c_str());
  std::exit(1);
}

/// The tensors of a safetensors file whose header is as examples/data/make_minilm.py writes it.
class File {
 public:
  explicit File(const char* path) {
    std::ifstream stream(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    std::uint64_t length = 0;
    if (bytes_.size() >= 8) std::copy_n(bytes_.data(), 8, reinterpret_cast<char*>(&length));
    if (length == 0 || length > bytes_.size() - 8) fail(std::string("cannot read ") + path);
    header_ = std::string(bytes_.data() + 8, length);
    first_ = bytes_.data() + 8 + length;
  }
  /// The numbers of a list that belongs to a tensor.
  std::vector<std::int64_t> list(const std::string& tensor, const std::string& key) const {
    std::size_t at = header_.find("\"" + tensor + "\":{");
    if (at != std::string::npos) at = header_.find("\"" + key + "\":[", at);
    if (at == std::string::npos) fail("the file has no " + tensor);
    std::vector<std::int64_t> numbers;
    const char* text = header_.c_str() + header_.find('[', at);
    while (*text != ']') {
      char* end = nullptr;
      numbers.push_back(std::strtoll(text + 1, &end, 10));
      text = end;
    }
    return numbers;
  }
  const char* data(const std::string& tensor) const {
    return first_ + list(tensor, "data_offsets")[0];
  }

 private:
  std::vector<char> bytes_;
  std::string header_;
  const char* first_ = nullptr;
};

/// [batch, positions, heads, head_dim], as an encoder's layers have them, of the file's [B,H,S,D].
struct Rows {
  Rows(const File& file, const char* name) : shape(file.list(name, "shape")) {
    const auto* from = reinterpret_cast<const float*>(file.data(name));
    data.resize(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t h = 0; h < shape[1]; ++h) {
        for (std::int64_t s = 0; s < shape[2]; ++s, from += shape[3]) {
          std::copy_n(
              from, shape[3],
              &data[static_cast<std::size_t>(((b * shape[2] + s) * shape[1] + h) * shape[3])]);
        }
      }
    }
  }
  TensorView padded(float* x) const {  // [B,H,S,D]
    return regard::make_view(x, {shape[0], shape[1], shape[2], shape[3]},
                             {shape[2] * shape[1] * shape[3], shape[3], shape[1] * shape[3], 1});
  }
  TensorView positions(float* x) const {  // [B,S,H,D]
    return regard::make_view(x, {shape[0], shape[2], shape[1], shape[3]});
  }
  TensorView packed(float* x, std::int64_t total) const {  // [1,H,total,D]
    return regard::make_view(x, {1, shape[1], total, shape[3]},
                             {total * shape[1] * shape[3], shape[3], shape[1] * shape[3], 1});
  }
  TensorView rows(float* x, std::int64_t total) const {  // [total,H,D]
    return regard::make_view(x, {total, shape[1], shape[3]});
  }

  std::vector<std::int64_t> shape;  // B, H, S, D
  std::vector<float> data;
};

/// The median of 15 repeats of 20 calls.
double milliseconds(const std::function<void()>& call) {
  std::vector<double> times;
  for (int repeat = 0; repeat < 15; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) call();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count() / 20);
  }
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return times[7];
}

/// The largest difference at positions that hold a token.
float difference(const std::vector<float>& a, const std::vector<float>& b,
                 const regard::Lengths& lengths, std::int64_t width) {
  float largest = 0.0f;
  for (const std::int64_t index : lengths.indices()) {
    for (std::int64_t i = index * width; i < (index + 1) * width; ++i) {
      const auto at = static_cast<std::size_t>(i);
      largest = std::max(largest, std::abs(a[at] - b[at]));
    }
  }
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) fail("usage: packed_sentences FILE (examples/data/minilm.safetensors)");
  const File file(argv[1]);
  Rows q(file, "q"), k(file, "k"), v(file, "v");
  const std::int64_t batch = q.shape[0], seqlen = q.shape[2], width = q.shape[1] * q.shape[3];
  const TensorView seqlens =
      regard::make_view(reinterpret_cast<const std::int32_t*>(file.data("seqlens_kv")), {batch});
  const auto made = regard::Lengths::from_seqlens(seqlens, seqlen);
  check(made.status());
  const regard::Lengths& lengths = *made;
  std::printf("%lld sentences, %lld of %lld positions hold a token\n",
              static_cast<long long>(batch), static_cast<long long>(lengths.total()),
              static_cast<long long>(batch * seqlen));

  // Once for the batch: an encoder packs its hidden states before the first layer, not in each.
  std::vector<std::vector<float>> packed(4);
  for (std::size_t i = 0; i < 4; ++i) {
    packed[i].resize(static_cast<std::size_t>(lengths.total() * width));
    Rows* const from = i == 0 ? &q : i == 1 ? &k : &v;
    if (i == 3) continue;  // out
    check(regard::unpad(lengths, from->positions(from->data.data()),
                        from->rows(packed[i].data(), lengths.total())));
  }
  std::vector<unsigned char> mask(static_cast<std::size_t>(batch * seqlen), 0);
  for (const std::int64_t index : lengths.indices()) mask[static_cast<std::size_t>(index)] = 1;

  std::vector<float> with_lengths(q.data.size()), with_mask(q.data.size()), back(q.data.size());
  regard::Context& context = regard::default_context();
  regard::AttentionRequest padded;
  padded.q = q.padded(q.data.data());
  padded.k = k.padded(k.data.data());
  padded.v = v.padded(v.data.data());
  padded.out = q.padded(with_lengths.data());
  padded.seqlens_q = padded.seqlens_kv = seqlens;
  regard::AttentionRequest masked = padded;
  masked.seqlens_q = masked.seqlens_kv = {};
  masked.out = q.padded(with_mask.data());
  masked.attn_mask = regard::make_view(mask.data(), regard::Dtype::kU8, {batch, 1, 1, seqlen});
  regard::AttentionRequest rows;
  rows.q = q.packed(packed[0].data(), lengths.total());
  rows.k = k.packed(packed[1].data(), lengths.total());
  rows.v = v.packed(packed[2].data(), lengths.total());
  rows.out = q.packed(packed[3].data(), lengths.total());
  rows.cu_seqlens_q = rows.cu_seqlens_kv = lengths.cu_seqlens_view();
  rows.max_seqlen_q = rows.max_seqlen_kv = lengths.max_seqlen();

  const auto run = [&](const regard::AttentionRequest& request) {
    return milliseconds([&] { check(regard::attention(context, request)); });
  };
  const double times[] = {run(padded), run(masked), run(rows)};
  check(regard::pad(lengths, q.rows(packed[3].data(), lengths.total()), q.positions(back.data())));
  const float of_mask = difference(with_mask, with_lengths, lengths, width);
  const float of_packed = difference(back, with_lengths, lengths, width);
  std::printf("padded, lengths  %7.3f ms\n", times[0]);
  std::printf("padded, mask     %7.3f ms, differs by %.1e at the tokens\n", times[1],
              static_cast<double>(of_mask));
  std::printf("packed           %7.3f ms, %s\n", times[2],
              of_packed == 0.0f ? "the same bits" : "differs");
  return of_packed == 0.0f && back == with_lengths && of_mask < 1e-5f ? 0 : 1;
}
