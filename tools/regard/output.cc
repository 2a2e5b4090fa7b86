#include "tools/regard/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "regard/selection.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/safetensors_json.h"

namespace regard::cli {
namespace {

bool stdout_wants_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* terminal = std::getenv("TERM");
  if (terminal != nullptr && std::string_view(terminal) == "dumb") return false;
  return ::isatty(STDOUT_FILENO) == 1;
}

const char* escape_of(Colour colour) {
  switch (colour) {
    case Colour::kGood: return "\x1b[32m";
    case Colour::kBad: return "\x1b[31m";
    case Colour::kWarning: return "\x1b[33m";
    case Colour::kStrong: return "\x1b[1m";
    case Colour::kPlain: break;
  }
  return "";
}

int exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return kExitOk;
    case StatusCode::kInvalidArgument:
    case StatusCode::kOverflow:
    case StatusCode::kNotFound: return kExitUsage;
    case StatusCode::kNoBackend: return kExitNoBackend;
    case StatusCode::kWorkspace:
    case StatusCode::kRefusedAtPlan:
    case StatusCode::kConformanceFailed:
    case StatusCode::kInternal:
    case StatusCode::kInterrupted:
    case StatusCode::kUnavailable:
    case StatusCode::kOutOfMemory: break;
  }
  return kExitFailed;
}

Colour colour_of(VerdictStatus status) {
  switch (status) {
    case VerdictStatus::kChosen: return Colour::kGood;
    case VerdictStatus::kExcluded: return Colour::kWarning;
    case VerdictStatus::kCannotRun:
    case VerdictStatus::kNotBuilt: return Colour::kBad;
    case VerdictStatus::kUsable: break;
  }
  return Colour::kPlain;
}

// Paints the second cell of a Selection's row.
void paint_status(const Output& output, std::string* row) {
  const std::size_t at = row->find_first_not_of(' ', std::min(row->find("  "), row->size()));
  if (at == std::string::npos) return;
  for (int i = 0; i <= static_cast<int>(VerdictStatus::kNotBuilt); ++i) {
    const auto status = static_cast<VerdictStatus>(i);
    const std::string_view name = to_string(status);
    if (row->compare(at, name.size(), name) != 0) continue;
    row->replace(at, name.size(), output.paint(name, colour_of(status)));
    return;
  }
}

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

Output::Output(std::string verb, const OutputOptions& options)
    : verb_(std::move(verb)), options_(options), colour_(!options.json && stdout_wants_colour()) {
  keep_for_interrupts();
}

void Output::keep_for_interrupts() {
  if (!json()) return;
  set_interrupt_documents(nullptr);
  Json content = document_;
  content["error"] = {{"code", "interrupted"}, {"message", "interrupted"}};
  for (std::size_t i = 0; i < kInterruptedExitCodes.size(); ++i) {
    interrupt_documents_[i] = document_text(content, kInterruptedExitCodes[i]);
  }
  set_interrupt_documents(&interrupt_documents_);
}

void Output::apply_to(Context& context) const {
  if (quiet()) context.set_log_sink([](void*, LogLevel, std::string_view) {}, nullptr);
}

Output::~Output() { set_interrupt_documents(nullptr); }

void Output::print(std::string_view text) {
  if (json()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // long work may follow
}

std::string Output::paint(std::string_view text, Colour colour) const {
  if (!colour_ || colour == Colour::kPlain) return std::string(text);
  return fmt::format("{}{}\x1b[0m", escape_of(colour), text);
}

void Output::warn(std::string_view message) {
  std::fflush(stdout);  // keeps the order where both are one terminal
  complain(fmt::format("regard: {}\n", message));
}

int Output::fail(const Status& status) {
  if (const auto selection = status.selection()) {
    document_["selection"] = Json::parse(to_json(*selection));
    print(highlight(*this, to_string(*selection)));
  }
  return fail(exit_code_of(status.code()), to_string(status.code()), status.message());
}

int Output::fail(int exit_code, std::string_view kind, std::string_view message) {
  document_["error"] = {{"code", std::string(kind)}, {"message", printable(message)}};
  warn(printable(message));
  return exit_code;
}

int Output::fail_interrupted() {
  return fail(interrupted_exit_code(), "interrupted", "interrupted");
}

int Output::finish(int exit_code) {
  if (json()) {
    const std::string text = document_text(document_, exit_code);
    set_interrupt_documents(nullptr);  // one document is enough
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return flush_stdout(exit_code);
}

std::string Output::document_text(const Json& content, int exit_code) const {
  Json whole = {{"schema_version", kSchemaVersion}, {"verb", verb_}, {"exit_code", exit_code}};
  whole.update(content);
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void complain(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

int flush_stdout(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  complain("regard: standard output could not be written\n");
  return exit_code == kExitOk ? kExitFailed : exit_code;
}

void Table::add(std::vector<std::string> cells, std::vector<Colour> colours) {
  rows_.push_back({std::move(cells), std::move(colours)});
}

std::string Table::text(const Output& output) const {
  std::vector<std::size_t> widths;
  for (const std::string& title : header_) widths.push_back(title.size());
  for (const Row& row : rows_) {
    for (std::size_t i = 0; i < row.cells.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], row.cells[i].size());
    }
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells, const std::vector<Colour>& colours) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool last = i + 1 == cells.size();
      const Colour colour = i < colours.size() ? colours[i] : Colour::kPlain;
      out += output.paint(cells[i], colour);
      if (!last) out.append(widths[i] - cells[i].size() + 2, ' ');
    }
    out += '\n';
  };
  line(header_, std::vector<Colour>(header_.size(), Colour::kStrong));
  for (const Row& row : rows_) line(row.cells, row.colours);
  return out;
}

Progress::Progress(const Output& output, std::string label, std::int64_t total)
    : label_(std::move(label)),
      total_(std::max<std::int64_t>(total, 1)),
      enabled_(!output.json() && !output.quiet() && ::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::update(std::int64_t done, double seconds_left) {
  constexpr std::int64_t kRedrawNs = 100'000'000;
  constexpr std::int64_t kWidth = 30;
  if (!enabled_) return;
  const std::int64_t now = now_ns();
  if (last_ns_ != 0 && now - last_ns_ < kRedrawNs) return;
  last_ns_ = now;
  drawn_ = true;
  set_progress_drawn(true);
  const auto full = static_cast<std::size_t>(kWidth * std::min(done, total_) / total_);
  std::string left;
  if (seconds_left >= 0.0) {
    const auto seconds = static_cast<std::int64_t>(seconds_left);
    left = fmt::format(", {}:{:02} left", seconds / 60, seconds % 60);
  }
  complain(fmt::format("\r\x1b[K[{:.<{}}] {}/{} {}{}", std::string(full, '#'), kWidth, done, total_,
                       label_, left));
}

void Progress::clear() {
  if (!drawn_) return;
  complain("\r\x1b[K");
  drawn_ = false;
  set_progress_drawn(false);
  last_ns_ = 0;
}

std::string printable(std::string_view text) {
  const bool utf8 = safetensors::is_utf8(text);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = c == '\n' || (byte >= 0x20 && byte != 0x7f && (byte < 0x80 || utf8));
    if (plain) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
    }
  }
  return out;
}

std::string bytes_text(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < (std::int64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / 1024.0);
  if (bytes < (std::int64_t{1} << 30)) return fmt::format("{:.1f} MiB", value / 1048576.0);
  return fmt::format("{:.1f} GiB", value / 1073741824.0);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string highlight(const Output& output, const std::string& selection_text) {
  std::string out;
  bool in_table = false;
  std::string_view rest = selection_text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
    std::string line(rest.substr(0, end));
    rest.remove_prefix(end);
    const bool ends = line.back() == '\n';
    if (ends) line.pop_back();
    line = printable(line);
    if (line.starts_with("warning:")) {
      line = output.paint(line, Colour::kWarning);
    } else if (line.starts_with("backend ")) {
      line = output.paint(line, Colour::kStrong);
      in_table = true;
    } else if (in_table && !line.starts_with(' ')) {
      paint_status(output, &line);
    }
    out += line + (ends ? "\n" : "");
  }
  return out;
}

}  // namespace regard::cli
