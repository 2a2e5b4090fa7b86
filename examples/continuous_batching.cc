// An engine that serves many sequences at once over one pool of pages, on threads of its own:
// sequences join as others end, prompts and tokens are appended in the call, one plan serves every
// batch. Each sequence ends with the bits that it has alone on contiguous keys.
//
//   continuous_batching [REQUESTS]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "examples/queue_executor.h"
#include "regard/attention.h"

namespace {

using regard::check;
using regard::Dtype;
using regard::make_view;

// The attention of one layer of a model with 1.2 billion parameters. Layers have pools of their
// own and share the page table.
constexpr std::int64_t kHeads = 32, kHeadsKv = 8, kHeadDim = 64;
constexpr std::int64_t kPageSize = 16, kNumPages = 2048, kMaxPages = 64;  // of a sequence
constexpr std::int64_t kMaxBatch = 64, kMaxPrompt = 512;
constexpr std::size_t kBf16Bytes = 2;

using Rows = std::vector<std::uint16_t>;  // bits of bf16

/// What a model's projections would give for a token: numbers that are those of the token alone.
void fill_rows(std::int64_t sequence, std::int64_t position, std::int64_t heads, std::uint16_t* to,
               std::int64_t head_stride) {
  auto seed = static_cast<std::uint32_t>(sequence * 100003 + position * 17 + heads);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      seed = seed * 1664525u + 1013904223u;
      const float value = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      to[h * head_stride + d] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

/// Each has numbers of its own.
enum Tensor : std::int64_t { kQ, kK, kV };

struct Sequence {
  std::int64_t id = 0;
  std::int64_t length = 0;  // rows in the cache
  std::int64_t last = 0;    // where it ends
  std::vector<std::int32_t> pages;
};

/// Rows [B,heads,tokens,D]: the next tokens of each sequence, from its length on.
Rows rows_of(Tensor tensor, std::int64_t heads, const std::vector<Sequence*>& batch,
             std::int64_t tokens) {
  Rows rows(batch.size() * static_cast<std::size_t>(heads * tokens * kHeadDim));
  for (std::size_t b = 0; b < batch.size(); ++b) {
    for (std::int64_t s = 0; s < tokens; ++s) {
      const std::int64_t at = (static_cast<std::int64_t>(b) * heads * tokens + s) * kHeadDim;
      fill_rows(3 * batch[b]->id + tensor, batch[b]->length + s, heads, rows.data() + at,
                tokens * kHeadDim);
    }
  }
  return rows;
}

/// Pages [num_pages, Hkv, page_size, D] of K and of V, and those that are free.
class Pool {
 public:
  Pool() : k_(elements()), v_(elements()) {
    for (std::int32_t page = kNumPages - 1; page >= 0; --page) free_.push_back(page);
  }
  /// Pages for `length` rows of a sequence; false, and nothing taken, where too few are free.
  bool reserve(Sequence* sequence, std::int64_t length) {
    const auto needed = static_cast<std::size_t>((length + kPageSize - 1) / kPageSize);
    const std::size_t own = sequence->pages.size();
    if (needed > own + free_.size()) return false;
    for (std::size_t x = own; x < needed; ++x) {
      sequence->pages.push_back(free_.back());
      free_.pop_back();
    }
    most_used_ = std::max(most_used_, kNumPages - static_cast<std::int64_t>(free_.size()));
    return true;
  }
  void release(Sequence* sequence) {
    free_.insert(free_.end(), sequence->pages.begin(), sequence->pages.end());
    sequence->pages.clear();
  }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t most_used() const { return most_used_; }

  regard::TensorView k() { return view(k_); }
  regard::TensorView v() { return view(v_); }
  /// A sequence's rows of K or V without gaps, [Hkv, length, D].
  static Rows contiguous(const regard::TensorView& pages, const Sequence& sequence) {
    Rows rows(static_cast<std::size_t>(kHeadsKv * sequence.length * kHeadDim));
    const auto* const from = static_cast<const std::uint16_t*>(pages.data);
    for (std::int64_t h = 0; h < kHeadsKv; ++h) {
      for (std::int64_t j = 0; j < sequence.length; ++j) {
        const std::int64_t page = sequence.pages[static_cast<std::size_t>(j / kPageSize)];
        std::copy_n(from + ((page * kHeadsKv + h) * kPageSize + j % kPageSize) * kHeadDim, kHeadDim,
                    rows.begin() + (h * sequence.length + j) * kHeadDim);
      }
    }
    return rows;
  }

 private:
  static std::size_t elements() {
    return static_cast<std::size_t>(kNumPages * kHeadsKv * kPageSize * kHeadDim);
  }
  static regard::TensorView view(Rows& rows) {
    return make_view(rows.data(), Dtype::kBf16, {kNumPages, kHeadsKv, kPageSize, kHeadDim});
  }

  Rows k_, v_;
  std::vector<std::int32_t> free_;
  std::int64_t most_used_ = 0;
};

/// Time and tokens of a phase.
struct Phase {
  const char* name;
  std::int64_t tokens = 0;
  std::int64_t calls = 0;
  double seconds = 0.0;

  void print() const {
    std::printf("%-8s %7lld tokens in %5lld calls, %9.0f tokens a second\n", name,
                static_cast<long long>(tokens), static_cast<long long>(calls),
                static_cast<double>(tokens) / seconds);
  }
};

class Engine {
 public:
  explicit Engine(regard::Executor& executor) : context_(regard::read_env()) {
    launch_.executor = &executor;
    plan_for(&prefill_plan_, 1, kMaxPrompt);
    plan_for(&decode_plan_, kMaxBatch, 1);
    memory_.resize(static_cast<std::size_t>(
        std::max(prefill_plan_.workspace_bytes(), decode_plan_.workspace_bytes()) + 64));
    const auto at = (reinterpret_cast<std::uintptr_t>(memory_.data()) + 63) / 64 * 64;
    launch_.workspace = {reinterpret_cast<void*>(at), memory_.size() - 64};
  }

  Pool& pool() { return pool_; }

  /// Appends the next `tokens` rows of each sequence, whose pages are reserved, and attends:
  /// [B,Hq,tokens,D].
  Rows step(const std::vector<Sequence*>& batch, std::int64_t tokens, Phase* phase) {
    Rows q = rows_of(kQ, kHeads, batch, tokens), k = rows_of(kK, kHeadsKv, batch, tokens);
    Rows v = rows_of(kV, kHeadsKv, batch, tokens), out(q.size());
    std::vector<std::int32_t> table(batch.size() * kMaxPages, -1), lengths;
    for (std::size_t b = 0; b < batch.size(); ++b) {
      std::copy(batch[b]->pages.begin(), batch[b]->pages.end(), table.begin() + b * kMaxPages);
      lengths.push_back(static_cast<std::int32_t>(batch[b]->length));
    }
    const auto size = static_cast<std::int64_t>(batch.size());
    const regard::AttentionRequest request = request_of(
        size, tokens, {q.data(), k.data(), v.data(), out.data()}, {table.data(), lengths.data()});
    const auto start = std::chrono::steady_clock::now();
    check(regard::execute(tokens == 1 ? decode_plan_ : prefill_plan_, request, launch_));
    phase->seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    phase->tokens += size * tokens;
    ++phase->calls;
    for (Sequence* sequence : batch) sequence->length += tokens;
    return out;
  }

  /// The last row of a sequence, computed from contiguous keys.
  Rows alone(const Sequence& sequence) {
    Sequence before = sequence;
    --before.length;
    Rows q = rows_of(kQ, kHeads, {&before}, 1), out(q.size());
    const Rows k = Pool::contiguous(pool_.k(), sequence), v = Pool::contiguous(pool_.v(), sequence);
    regard::AttentionRequest request;
    request.q = make_view(q.data(), Dtype::kBf16, {1, kHeads, 1, kHeadDim});
    request.k = make_view(k.data(), Dtype::kBf16, {1, kHeadsKv, sequence.length, kHeadDim});
    request.v = make_view(v.data(), Dtype::kBf16, {1, kHeadsKv, sequence.length, kHeadDim});
    request.out = make_view(out.data(), Dtype::kBf16, {1, kHeads, 1, kHeadDim});
    check(regard::attention(context_, request));
    return out;
  }

 private:
  struct Data {
    std::uint16_t *q, *k, *v, *out;
  };
  struct Indices {
    std::int32_t *table, *lengths;
  };

  regard::AttentionRequest request_of(std::int64_t batch, std::int64_t tokens, Data data,
                                      Indices indices) {
    regard::AttentionRequest request;
    request.q = make_view(data.q, Dtype::kBf16, {batch, kHeads, tokens, kHeadDim});
    request.k = pool_.k();
    request.v = pool_.v();
    request.out = make_view(data.out, Dtype::kBf16, {batch, kHeads, tokens, kHeadDim});
    request.k_new = make_view(data.k, Dtype::kBf16, {batch, kHeadsKv, tokens, kHeadDim});
    request.v_new = make_view(data.v, Dtype::kBf16, {batch, kHeadsKv, tokens, kHeadDim});
    request.page_table = make_view(indices.table, {batch, kMaxPages});
    request.seqlens_kv = make_view(indices.lengths, {batch});
    request.options.page_size = kPageSize;
    request.options.is_causal = true;
    request.options.diagonal = regard::Diagonal::kBottomRight;
    return request;
  }

  /// A plan takes every call whose extents are at most its own.
  void plan_for(regard::Plan* plan, std::int64_t batch, std::int64_t tokens) {
    std::vector<std::int32_t> table(static_cast<std::size_t>(batch * kMaxPages), -1);
    std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), 0);
    Rows rows[4];
    for (Rows& x : rows) x.resize(static_cast<std::size_t>(batch * kHeads * tokens * kHeadDim));
    const auto request =
        request_of(batch, tokens, {rows[0].data(), rows[1].data(), rows[2].data(), rows[3].data()},
                   {table.data(), lengths.data()});
    const auto params = regard::describe(request);
    check(params.status());
    auto made = regard::plan(context_, *params);
    check(made.status());
    *plan = *std::move(made);
  }

  Pool pool_;
  regard::Context context_;
  regard::Launch launch_;
  regard::Plan prefill_plan_, decode_plan_;
  std::vector<char> memory_;
};

/// Prompts of 16 to 400 tokens, answers of 20 to 200.
std::unique_ptr<Sequence> new_sequence(std::int64_t id, std::int64_t* prompt) {
  auto made = std::make_unique<Sequence>();
  made->id = id;
  *prompt = 16 + id * 7919 % 385;
  made->last = *prompt + 20 + id * 104729 % 181;
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t requests = argc > 1 ? std::atoll(argv[1]) : 80;
  example::WorkQueue queue(3);
  example::QueueExecutor executor(queue);
  Engine engine(executor);
  Phase prefill{"prefill"}, decode{"decode"};
  std::vector<std::unique_ptr<Sequence>> active;
  std::int64_t next = 0, ended = 0, same = 0;
  while (ended < requests) {
    // Sequences join while there is room for all that they may become.
    while (next < requests && static_cast<std::int64_t>(active.size()) < kMaxBatch) {
      std::int64_t prompt = 0;
      std::unique_ptr<Sequence> sequence = new_sequence(next, &prompt);
      if (!engine.pool().reserve(sequence.get(), sequence->last)) break;
      engine.step({sequence.get()}, prompt, &prefill);
      active.push_back(std::move(sequence));
      ++next;
    }
    std::vector<Sequence*> batch;
    for (const auto& sequence : active) batch.push_back(sequence.get());
    const Rows out = engine.step(batch, 1, &decode);
    for (std::size_t b = batch.size(); b-- > 0;) {
      if (batch[b]->length < batch[b]->last) continue;
      const Rows alone = engine.alone(*batch[b]);
      same +=
          std::memcmp(alone.data(), out.data() + b * alone.size(), alone.size() * kBf16Bytes) == 0;
      engine.pool().release(batch[b]);
      active.erase(active.begin() + static_cast<std::ptrdiff_t>(b));
      ++ended;
    }
  }
  prefill.print();
  decode.print();
  std::printf("%.1f sequences a call, at most %lld of %lld pages\n",
              static_cast<double>(decode.tokens) / static_cast<double>(decode.calls),
              static_cast<long long>(engine.pool().most_used()), static_cast<long long>(kNumPages));
  std::printf("%lld of %lld sequences end with the bits of contiguous keys\n",
              static_cast<long long>(same), static_cast<long long>(requests));
  const bool all_free = engine.pool().free_pages() == kNumPages;
  return same == requests && all_free && executor.runs() > 0 ? 0 : 1;
}
