// An engine that serves many sequences at once over one pool of pages, on threads of its own:
// sequences join as others end, prompts and tokens are appended in the call, one plan serves every
// batch. Each sequence ends with the bits that it has alone on contiguous keys.
//
//   continuous_batching [REQUESTS] [--seconds N] [--every BATCHES] [--threads N]
//
// serves REQUESTS [80] sequences; with --seconds, as many as come in that time. --every prints the
// tokens a second of each so many batches [64 with --seconds, else none], --threads sets the
// threads [REGARD_NUM_THREADS, or the CPUs allowed]. Tokens a second count appending and attention,
// not what makes up for the rest of a model.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "examples/queue_executor.h"
#include "regard/attention.h"

namespace {

using regard::check;
using regard::Dtype;
using regard::make_view;

// The attention of one layer of Llama 3 8B. Layers have pools of their own and share the page
// table.
constexpr std::int64_t kHeads = 32, kHeadsKv = 8, kHeadDim = 128;
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

/// Zeros on huge pages of 2 MB where the system grants them: a batch reads all pages in an order
/// that the CPU cannot foresee, and the addresses of small ones take longer to translate than to
/// read.
class HugeRows {
 public:
  explicit HugeRows(std::size_t elements) {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t bytes = (elements * kBf16Bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* const memory = std::aligned_alloc(kHugePage, bytes);
    if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    std::memset(memory, 0, bytes);
    rows_.reset(static_cast<std::uint16_t*>(memory));
  }
  std::uint16_t* data() const { return rows_.get(); }

 private:
  struct Free {
    void operator()(std::uint16_t* rows) const { std::free(rows); }
  };
  std::unique_ptr<std::uint16_t[], Free> rows_;
};

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
  static regard::TensorView view(const HugeRows& rows) {
    return make_view(rows.data(), Dtype::kBf16, {kNumPages, kHeadsKv, kPageSize, kHeadDim});
  }

  HugeRows k_, v_;
  std::vector<std::int32_t> free_;
  std::int64_t most_used_ = 0;
};

/// Time and tokens of a phase.
struct Phase {
  const char* name;
  std::int64_t tokens = 0;
  std::int64_t calls = 0;
  std::int64_t keys = 0;  // of all sequences of all calls
  double seconds = 0.0;

  double tokens_a_second() const {
    return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
  }
  void print() const {
    std::printf("%-8s %7lld tokens in %5lld calls, %9.0f tokens a second\n", name,
                static_cast<long long>(tokens), static_cast<long long>(calls), tokens_a_second());
  }
  /// Of the batches `first` to `last` of decoding.
  void print_batches(std::int64_t first, std::int64_t last) const {
    std::printf("batches %5lld to %5lld: %5.1f sequences of %5.1f keys, %9.0f tokens a second\n",
                static_cast<long long>(first), static_cast<long long>(last),
                static_cast<double>(tokens) / static_cast<double>(calls),
                static_cast<double>(keys) / static_cast<double>(tokens), tokens_a_second());
    std::fflush(stdout);
  }
};

class Engine {
 public:
  /// `threads`: 0 for those of the environment.
  Engine(regard::Executor& executor, std::int64_t threads) : context_(regard::read_env()) {
    if (threads > 0) check(context_.set_concurrency(static_cast<int>(threads)));
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
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::int32_t> table(batch.size() * kMaxPages, -1), lengths;
    for (std::size_t b = 0; b < batch.size(); ++b) {
      std::copy(batch[b]->pages.begin(), batch[b]->pages.end(), table.begin() + b * kMaxPages);
      lengths.push_back(static_cast<std::int32_t>(batch[b]->length));
    }
    const auto size = static_cast<std::int64_t>(batch.size());
    const regard::AttentionRequest request = request_of(
        size, tokens, {q.data(), k.data(), v.data(), out.data()}, {table.data(), lengths.data()});
    check(regard::execute(tokens == 1 ? decode_plan_ : prefill_plan_, request, launch_));
    phase->seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    phase->tokens += size * tokens;
    ++phase->calls;
    for (Sequence* sequence : batch) {
      sequence->length += tokens;
      phase->keys += sequence->length;
    }
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

struct Options {
  std::int64_t requests = 80;
  double seconds = 0.0;    // 0: until all requests have ended
  std::int64_t every = 0;  // batches of a line; 0: none
  std::int64_t threads = 0;
};

/// Ends the program where an argument is none.
Options read_options(int argc, char** argv) {
  Options options;
  bool has_every = false;
  const auto fail = [](const char* argument) {
    std::fprintf(stderr, "%s must be a number of more than 0, or an option with one\n", argument);
    std::exit(2);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool is_option = name == "--seconds" || name == "--every" || name == "--threads";
    if (is_option && i + 1 == argc) fail(argv[i]);
    const double value = std::atof(argv[is_option ? ++i : i]);
    if (!(value > 0.0)) fail(name.c_str());
    if (name == "--seconds") {
      options.seconds = value;
    } else if (name == "--every") {
      options.every = static_cast<std::int64_t>(value);
      has_every = true;
    } else if (name == "--threads") {
      options.threads = static_cast<std::int64_t>(value);
    } else {
      options.requests = static_cast<std::int64_t>(value);
    }
  }
  if (options.seconds > 0.0 && !has_every) options.every = 64;
  return options;
}

/// Sequences that are served, in batches of all that are there.
class Server {
 public:
  Server(Engine& engine, const Options& options) : engine_(engine), options_(options) {}

  /// Until `requests` sequences have ended, or the time is over.
  void run() {
    const auto start = std::chrono::steady_clock::now();
    while (options_.seconds > 0.0 || ended_ < options_.requests) {
      const std::chrono::duration<double> since = std::chrono::steady_clock::now() - start;
      if (options_.seconds > 0.0 && since.count() >= options_.seconds) break;
      join();
      decode();
    }
    if (lines_.calls > 0) lines_.print_batches(decode_.calls - lines_.calls, decode_.calls - 1);
    for (const auto& sequence : active_) engine_.pool().release(sequence.get());
  }
  /// Returns whether each sequence that ended had the bits of contiguous keys.
  bool print() const {
    prefill_.print();
    decode_.print();
    std::printf("%.1f sequences a call, at most %lld of %lld pages\n",
                static_cast<double>(decode_.tokens) / static_cast<double>(decode_.calls),
                static_cast<long long>(engine_.pool().most_used()),
                static_cast<long long>(kNumPages));
    std::printf("%lld of %lld sequences end with the bits of contiguous keys\n",
                static_cast<long long>(same_), static_cast<long long>(ended_));
    return same_ == ended_;
  }

 private:
  /// Sequences join while there is room for all that they may become.
  void join() {
    const bool has_limit = options_.seconds == 0.0;
    while ((!has_limit || next_ < options_.requests) &&
           static_cast<std::int64_t>(active_.size()) < kMaxBatch) {
      std::int64_t prompt = 0;
      std::unique_ptr<Sequence> sequence = new_sequence(next_, &prompt);
      if (!engine_.pool().reserve(sequence.get(), sequence->last)) break;
      engine_.step({sequence.get()}, prompt, &prefill_);
      active_.push_back(std::move(sequence));
      ++next_;
    }
  }

  /// A token of every sequence; those that are complete end.
  void decode() {
    std::vector<Sequence*> batch;
    for (const auto& sequence : active_) batch.push_back(sequence.get());
    const Phase before = decode_;
    const Rows out = engine_.step(batch, 1, &decode_);
    lines_.tokens += decode_.tokens - before.tokens;
    lines_.keys += decode_.keys - before.keys;
    lines_.seconds += decode_.seconds - before.seconds;
    if (++lines_.calls == options_.every) {
      lines_.print_batches(decode_.calls - lines_.calls, decode_.calls - 1);
      lines_ = {"lines"};
    } else if (options_.every == 0) {
      lines_ = {"lines"};
    }
    for (std::size_t b = batch.size(); b-- > 0;) {
      if (batch[b]->length < batch[b]->last) continue;
      const Rows alone = engine_.alone(*batch[b]);
      same_ +=
          std::memcmp(alone.data(), out.data() + b * alone.size(), alone.size() * kBf16Bytes) == 0;
      engine_.pool().release(batch[b]);
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(b));
      ++ended_;
    }
  }

  Engine& engine_;
  const Options options_;
  Phase prefill_{"prefill"}, decode_{"decode"}, lines_{"lines"};  // lines_: of the next line
  std::vector<std::unique_ptr<Sequence>> active_;
  std::int64_t next_ = 0, ended_ = 0, same_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = read_options(argc, argv);
  example::WorkQueue queue(options.threads > 0 ? static_cast<int>(options.threads) : 3);
  example::QueueExecutor executor(queue);
  Engine engine(executor, options.threads);
  Server server(engine, options);
  server.run();
  const bool all_same = server.print();
  const bool all_free = engine.pool().free_pages() == kNumPages;
  // A single worker needs no executor.
  return all_same && all_free && (executor.runs() > 0 || options.threads == 1) ? 0 : 1;
}
