// Trains a small character-level transformer end to end: attention forward and backward by regard,
// the rest in plain loops (train_tiny/). Prints the loss, and a checksum of the parameters, which
// is the same for any number of threads.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "examples/train_tiny/chart.h"
#include "examples/train_tiny/model.h"
#include "examples/train_tiny/options.h"
#include "examples/train_tiny/text.h"

namespace {

using regard::Expected;
using regard::Status;

constexpr const char* kDebianTexts[] = {
    "/usr/share/common-licenses/Apache-2.0", "/usr/share/common-licenses/GPL-2",
    "/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/LGPL-2.1"};

int fail(const std::string& message) {
  std::fprintf(stderr, "train_tiny: %s\n", message.c_str());
  return 1;
}

/// On stderr, where that is a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::int64_t steps) : steps_(steps), shown_(isatty(2) == 1) {}
  ~ProgressBar() {
    if (shown_) std::fprintf(stderr, "\r%60s\r", "");
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void show(std::int64_t done, double loss) const {
    if (!shown_) return;
    const std::string bar(static_cast<std::size_t>(30 * done / steps_), '#');
    std::fprintf(stderr, "\r[%-30s] %lld/%lld  loss %.3f", bar.c_str(),
                 static_cast<long long>(done), static_cast<long long>(steps_), loss);
  }

 private:
  std::int64_t steps_;
  bool shown_;
};

/// FNV-1a of the parameters' bytes.
std::uint64_t checksum(const train::Floats& parameters) {
  std::uint64_t hash = 14695981039346656037u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(parameters.data());
  for (std::size_t i = 0; i < parameters.size() * sizeof(float); ++i) {
    hash = (hash ^ bytes[i]) * 1099511628211u;
  }
  return hash;
}

/// The step size: rises to 3e-3 within 20 steps, so that Adam's averages fill first.
float rate_of(std::int64_t step) {
  return 3e-3f * std::min(1.0f, static_cast<float>(step + 1) / 20.0f);
}

Expected<std::vector<double>> train_model(train::Model& model, const train::Text& text,
                                          const train::Sizes& sizes, const train::Threads& threads,
                                          std::int64_t steps) {
  train::Random random(1);
  train::Adam adam(model.parameters().size());
  const ProgressBar bar(steps);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < steps; ++step) {
    const train::Batch batch = train::draw_batch(text, sizes, &random);
    const Expected<double> loss =
        model.step(batch.inputs, batch.targets, static_cast<std::uint64_t>(step));
    if (!loss) return loss.status();
    adam.step(threads, model.gradients(), rate_of(step), &model.parameters());
    losses.push_back(*loss);
    bar.show(step + 1, *loss);
  }
  return losses;
}

/// The mean of the last losses: of one batch it is luck.
double last_loss(const std::vector<double>& losses) {
  const std::size_t count = std::min<std::size_t>(losses.size(), 10);
  double sum = 0.0;
  for (std::size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(count);
}

bool write_losses(const std::vector<double>& losses, const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  for (const double loss : losses) std::fprintf(file, "%.9g\n", loss);
  return std::fclose(file) == 0;
}

/// The texts that were asked for, or those of the machine.
Status read_texts(const train::Options& options, train::Text* text) {
  std::vector<std::string> paths = options.texts;
  if (paths.empty()) paths.assign(std::begin(kDebianTexts), std::end(kDebianTexts));
  for (const std::string& path : paths) {
    if (text->add(path)) continue;
    return Status(regard::StatusCode::kNotFound,
                  path + " cannot be read; name another file with --text");
  }
  text->finish();
  const std::int64_t min = train::Sizes().context + 1;
  if (text->size() > min) return {};
  return Status(regard::StatusCode::kInvalidArgument, "the text (" + std::to_string(text->size()) +
                                                          " bytes) must have more than " +
                                                          std::to_string(min));
}

int report(const train::Options& options, const std::vector<double>& losses, double guess,
           const std::string& title) {
  if (!options.losses.empty() && !write_losses(losses, options.losses)) {
    return fail(options.losses + " could not be written");
  }
  if (!options.svg.empty() && !train::write_svg({title, guess, losses}, options.svg)) {
    return fail(options.svg + " could not be written");
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  train::Options options;
  if (!train::read_options(count, words, &options)) return 2;
  train::Text text;
  if (const Status status = read_texts(options, &text); !status.ok()) {
    return fail(status.message());
  }
  regard::Env env = regard::read_env();
  if (options.threads > 0) env.concurrency = static_cast<std::int32_t>(options.threads);
  regard::Context context(env);
  const train::Threads threads{context.executor(), context.concurrency()};

  train::Sizes sizes;
  sizes.vocabulary = text.vocabulary();
  Expected<train::Attention> attention = train::Attention::make(context, sizes, options.policy);
  if (!attention) return fail(attention.status().message());
  const std::string backend = to_string(attention->plan().backend());
  const double guess = std::log(static_cast<double>(sizes.vocabulary));
  train::Model model(sizes, *std::move(attention), threads);
  std::printf("text        %lld bytes, %lld symbols\n", static_cast<long long>(text.size()),
              static_cast<long long>(sizes.vocabulary));
  std::printf("model       %zu parameters, %lld layers, %s attention, %d threads\n",
              model.parameters().size(), static_cast<long long>(sizes.layers), backend.c_str(),
              threads.count);

  const auto start = std::chrono::steady_clock::now();
  const Expected<std::vector<double>> losses =
      train_model(model, text, sizes, threads, options.steps);
  if (!losses) return fail(losses.status().message());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  std::printf("loss        %.4f at first (guessing: %.4f), %.4f after %zu steps\n", losses->front(),
              guess, last_loss(*losses), losses->size());
  std::printf("time        %.1f ms a step\n",
              1e3 * taken.count() / static_cast<double>(losses->size()));
  std::printf("parameters  %016llx\n",
              static_cast<unsigned long long>(checksum(model.parameters())));
  return report(options, *losses, guess, "Loss of train_tiny, " + backend + " attention");
}
