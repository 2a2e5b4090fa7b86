// `mpirun -n N regard run "CASE"`: attention of a case over the ranks of mpirun. Every rank makes
// its own rows, rank 0 prints what ran, how long, what each rank sent and held, and the error of
// some rows against double precision.

#include <fmt/format.h>
#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/measure_network.h"
#include "distributed/mpi/mpi_communicator.h"
#include "regard/context.h"
#include "tools/ranks/made_tensors.h"
#include "tools/ranks/step_lines.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/rank_words.h"

namespace regard::ranks {
namespace {

constexpr std::int64_t kSampledRows = 4;  // of each rank

template <class... Parts>
Status invalid(fmt::format_string<Parts...> text, Parts&&... parts) {
  return Status(StatusCode::kInvalidArgument,
                "[run] " + fmt::format(text, std::forward<Parts>(parts)...));
}

/// What the ranks compute.
struct Task {
  Case c;
  distributed::Options options;
  bool shows_steps = false;  // the word steps
};

/// Removes a word, which may be one of several in an argument; whether it was there.
bool take_word(std::vector<std::string>* words, std::string_view word) {
  bool found = false;
  for (std::string& argument : *words) {
    std::string padded = " " + argument + " ";
    const std::string wanted = " " + std::string(word) + " ";
    for (std::size_t at; (at = padded.find(wanted)) != std::string::npos; found = true) {
      padded.erase(at, wanted.size() - 1);
    }
    argument = padded.substr(1, padded.size() - 2);
  }
  return found;
}

Expected<Task> read_task(std::vector<std::string> words, int ranks) {
  const bool shows_steps = take_word(&words, "steps");
  const std::string own = "cp=" + std::to_string(ranks);
  words.insert(words.begin(), own);
  Expected<std::optional<cli::RankWords>> taken = cli::take_rank_words(&words);
  if (!taken) return taken.status();
  if ((*taken)->ranks != ranks) {
    return invalid("cp={} must be the ranks of mpirun, {}", (*taken)->ranks, ranks);
  }
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  Expected<Case> c = parse_case(text);
  if (!c) return c.status();
  Task task{*std::move(c), (*taken)->options, shows_steps};
  const AttentionParams& p = task.c.params;
  constexpr Feature kSupported[] = {Feature::kCausal,
                                    Feature::kWindowLeft,
                                    Feature::kWindowRight,
                                    Feature::kSoftcap,
                                    Feature::kLse,
                                    Feature::kDiagonalBottomRight,
                                    Feature::kDiagonalOffset,
                                    Feature::kGqa,
                                    Feature::kHeadDimsDiffer,
                                    Feature::kKvDtypesDiffer,
                                    Feature::kSeqlenQGreaterKv};
  for (int f = 0; f < kFeatureCount; ++f) {
    const auto feature = static_cast<Feature>(f);
    if (!p.features.has(feature)) continue;
    if (std::find(std::begin(kSupported), std::end(kSupported), feature) != std::end(kSupported)) {
      continue;
    }
    return invalid("{} must be left out under mpirun; windows, diagonals and softcap are computed",
                   to_string(feature));
  }
  if (p.device.type != DeviceType::kCpu) return invalid("device must be cpu under mpirun");
  task.options.seqlen_q = p.seqlen_q;
  task.options.seqlen_kv = p.seqlen_kv;
  return task;
}

std::int64_t shift_of(const Case& c) {
  switch (c.params.diagonal) {
    case Diagonal::kBottomRight: return c.params.seqlen_kv - c.params.seqlen_q;
    case Diagonal::kOffset: return c.data.diagonal_offset;
    default: return 0;
  }
}

/// Of one rank, as all receive it.
struct Line {
  std::int64_t rows, messages, bytes, memory;  // memory: the most, in KiB
  std::int64_t steps;                          // 0 where they are not shown
  double seconds, error;
};

/// This rank's tensors and its call.
class Part {
 public:
  Part(const Task& task, distributed::Communicator& communicator)
      : task_(task), communicator_(communicator) {}

  Status prepare() {
    const AttentionParams& p = task_.c.params;
    const auto at = static_cast<std::size_t>(communicator_.rank());
    const distributed::LayoutKind layout = task_.options.layout;
    const auto q = distributed::make_layout(layout, p.seqlen_q, communicator_.size());
    const auto kv = distributed::make_layout(layout, p.seqlen_kv, communicator_.size());
    if (!q) return q.status();
    if (!kv) return kv.status();
    pieces_ = (*q)[at];
    const std::int64_t rows = distributed::rows_of(pieces_);
    const std::int64_t keys = distributed::rows_of((*kv)[at]);
    const Elements made{task_.c.data.seed};
    const auto fill = [&](char name, Dtype dtype, std::vector<std::int64_t> shape,
                          const std::vector<distributed::Piece>& pieces, distributed::Tensor* to) {
      auto tensor = make_rows(context_, made, name, dtype, shape, pieces);
      if (tensor.ok()) *to = *std::move(tensor);
      return tensor.status();
    };
    if (Status s =
            fill('q', p.dtype_q, {p.batch, p.num_heads_q, rows, p.head_dim_qk}, pieces_, &q_);
        !s.ok()) {
      return s;
    }
    if (Status s =
            fill('k', p.dtype_k, {p.batch, p.num_heads_kv, keys, p.head_dim_qk}, (*kv)[at], &k_);
        !s.ok()) {
      return s;
    }
    if (Status s =
            fill('v', p.dtype_v, {p.batch, p.num_heads_kv, keys, p.head_dim_v}, (*kv)[at], &v_);
        !s.ok()) {
      return s;
    }
    out_ = distributed::Tensor(p.dtype_out, {p.batch, p.num_heads_q, rows, p.head_dim_v});
    request_.q = q_.view();
    request_.k = k_.view();
    request_.v = v_.view();
    request_.out = out_.view();
    request_.diagonal_offset = task_.c.data.diagonal_offset;
    AttentionOptions& o = request_.options;
    o.window_left = p.window_left;
    o.window_right = p.window_right;
    o.diagonal = p.diagonal;
    o.softmax_scale = p.softmax_scale;
    o.softcap = p.softcap;
    return {};
  }

  const AttentionRequest& request() const { return request_; }
  Context& context() { return context_; }
  std::vector<StepLine> steps() const { return steps_of(record_); }

  /// Twice; the second call is timed.
  Status run(const distributed::Plan& plan, Line* line) {
    for (int turn = 0; turn < 2; ++turn) {
      record_.has_activities = task_.shows_steps;
      const auto begin = distributed::Clock::now();
      if (Status s = distributed::attention(context_, communicator_, plan, request_, &record_);
          !s.ok()) {
        return s;
      }
      line->seconds = std::chrono::duration<double>(distributed::Clock::now() - begin).count();
      line->messages = record_.sent.messages;
      line->bytes = record_.sent.bytes;
      line->steps = static_cast<std::int64_t>(steps().size());
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    line->memory = usage.ru_maxrss;
    line->rows = request_.q.shape[2];
    return compare(line);
  }

 private:
  /// The error of some rows, spread over this rank's, in elements of out beside 1 or more.
  Status compare(Line* line) {
    const AttentionParams& p = task_.c.params;
    const TensorView& out = out_.view();
    const distributed::Tensor exact(Dtype::kF64,
                                    {out.shape[0], out.shape[1], out.shape[2], out.shape[3]});
    if (Status s = distributed::convert(context_, out, exact.view()); !s.ok()) return s;
    const Reference reference{p, {task_.c.data.seed}, shift_of(task_.c)};
    const std::int64_t rows = out.shape[2], samples = std::min(kSampledRows, rows);
    line->error = 0.0;
    for (std::int64_t x = 0; x < samples; ++x) {
      const std::int64_t row = samples == 1 ? 0 : x * (rows - 1) / (samples - 1);
      const std::int64_t b = x % p.batch, h = (x * 3 + communicator_.rank()) % p.num_heads_q;
      const std::vector<double> expected = reference.row(b, h, position(row));
      const double* const got = static_cast<const double*>(exact.view().data) +
                                ((b * p.num_heads_q + h) * rows + row) * p.head_dim_v;
      for (std::size_t d = 0; d < expected.size(); ++d) {
        const double error = std::abs(got[d] - expected[d]) / std::max(1.0, std::abs(expected[d]));
        if (!(error <= line->error)) line->error = std::isnan(error) ? HUGE_VAL : error;
      }
    }
    return {};
  }

  std::int64_t position(std::int64_t row) const {
    for (const distributed::Piece& piece : pieces_) {
      if (row < piece.length) return piece.begin + row;
      row -= piece.length;
    }
    return -1;
  }

  const Task& task_;
  distributed::Communicator& communicator_;
  Context context_;
  std::vector<distributed::Piece> pieces_;
  distributed::Tensor q_, k_, v_, out_;
  AttentionRequest request_;
  distributed::CallRecord record_;  // of the timed call
};

double tolerance_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return 1e-12;
    case Dtype::kF32: return 2e-5;
    case Dtype::kF16: return 4e-3;
    default: return 2e-2;
  }
}

/// True where the sampled rows are within the tolerance.
bool print(const Task& task, const distributed::Plan& plan, const std::vector<Line>& lines) {
  fmt::print("case      {}\n{}", to_string(task.c), plan.explain());
  fmt::print("rank        rows    time ms  messages   sent MiB  memory MiB  max error\n");
  double error = 0.0;
  for (std::size_t r = 0; r < lines.size(); ++r) {
    const Line& line = lines[r];
    fmt::print("{:4} {:11} {:10.3f} {:9} {:10.3f} {:11.1f} {:10.2g}\n", r, line.rows,
               line.seconds * 1e3, line.messages, static_cast<double>(line.bytes) / 1048576.0,
               static_cast<double>(line.memory) / 1024.0, line.error);
    error = std::max(error, line.error);
  }
  const double tolerance = tolerance_of(task.c.params.dtype_out);
  const bool is_within = error <= tolerance;
  fmt::print("max error {:.2g} of {} rows of each rank against double precision: {} {:g}\n", error,
             kSampledRows, is_within ? "within the tolerance" : "above the tolerance", tolerance);
  return is_within;
}

/// The exit code. `failed`: other ranks may be waiting for this one.
int run(distributed::Communicator& communicator, const std::vector<std::string>& words,
        bool* failed) {
  const bool is_first = communicator.rank() == 0;
  const auto report = [&](const Status& status, bool everywhere) {
    if (everywhere ? is_first : true) {
      fmt::print(stderr, "regard run: {}{}\n",
                 everywhere ? "" : fmt::format("rank {}: ", communicator.rank()), status.message());
    }
    *failed = !everywhere;
    return status.code() == StatusCode::kInvalidArgument ? cli::kExitUsage : cli::kExitFailed;
  };
  Expected<Task> task = read_task(words, communicator.size());
  if (!task) return report(task.status(), true);
  distributed::Options& options = task->options;
  if (options.network.source == distributed::NetworkSource::kAssumed) {
    const auto network =
        distributed::measure_network(communicator, options.topology, options.limits);
    if (!network)
      return report(network.status(), network.status().code() == StatusCode::kInvalidArgument);
    options.network = *network;
  }
  Part part(*task, communicator);
  if (Status s = part.prepare(); !s.ok()) return report(s, false);
  const auto plan = distributed::plan(part.context(), communicator, part.request(), task->options);
  if (!plan) return report(plan.status(), plan.status().code() == StatusCode::kInvalidArgument);
  std::vector<Line> lines(static_cast<std::size_t>(communicator.size()));
  Line& own = lines[static_cast<std::size_t>(communicator.rank())];
  if (Status s = part.run(*plan, &own); !s.ok()) return report(s, false);
  std::vector<std::span<std::byte>> spans;
  for (Line& line : lines) spans.push_back(std::as_writable_bytes(std::span(&line, 1)));
  distributed::Messages messages(communicator, task->options.limits, "run");
  if (Status s = messages.all_gather(spans, "results"); !s.ok()) return report(s, false);
  std::vector<std::int64_t> counts;
  for (const Line& line : lines) counts.push_back(line.steps);
  const auto steps = exchange_steps(communicator, options.limits, part.steps(), counts);
  if (!steps) return report(steps.status(), false);
  if (!is_first) return cli::kExitOk;
  const bool is_within = print(*task, *plan, lines);
  if (task->shows_steps) print_steps(*steps);
  return is_within ? cli::kExitOk : cli::kExitFailed;
}

}  // namespace
}  // namespace regard::ranks

int main(int argc, char** argv) {
  int provided = 0, result = 0;
  bool failed = false;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  {
    auto made = regard::distributed::make_mpi_communicator();
    if (!made.ok()) {
      fmt::print(stderr, "regard run: {}\n", made.status().message());
      MPI_Abort(MPI_COMM_WORLD, regard::cli::kExitFailed);
    }
    try {
      result = regard::ranks::run(**made, std::vector<std::string>(argv + 1, argv + argc), &failed);
    } catch (const std::bad_alloc&) {
      fmt::print(stderr, "regard run: rank {}: memory ran out; more ranks need less each\n",
                 (*made)->rank());
      result = regard::cli::kExitFailed;
      failed = true;
    }
  }
  std::fflush(stdout);
  if (failed) MPI_Abort(MPI_COMM_WORLD, result);
  MPI_Finalize();
  return result;
}
