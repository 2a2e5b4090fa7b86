#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "regard/context.h"
#include "regard/status.h"
#include "tools/regard/interrupt.h"

namespace regard::cli {

using Json = nlohmann::ordered_json;

inline constexpr int kSchemaVersion = 1;

enum class Colour { kPlain, kGood, kBad, kWarning, kStrong };

/// What the user wants of the output.
struct OutputOptions {
  bool json = false;
  bool quiet = false;  // results and errors alone
};

/// Where results go. For people: text on stdout as it comes. With --json: one document on stdout
/// when the verb is done, nothing else. Complaints go to stderr in both.
class Output {
 public:
  Output(std::string verb, const OutputOptions& options);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  bool json() const noexcept { return options_.json; }
  bool quiet() const noexcept { return options_.quiet; }
  /// The document; finish() adds schema_version, verb and exit_code.
  Json& document() noexcept { return document_; }

  /// Text for people; nothing with --json.
  void print(std::string_view text);
  /// `text` in colour where stdout is a terminal that has colours and NO_COLOR is unset.
  std::string paint(std::string_view text, Colour colour) const;

  /// A line on stderr.
  void warn(std::string_view message);
  /// Reports a failure and gives the exit code it stands for: 2 for words that are wrong, 3 where
  /// no backend can run, 1 otherwise. A Selection with the reasons is shown.
  int fail(const Status& status);
  /// Reports a failure of the given code.
  int fail(int exit_code, std::string_view kind, std::string_view message);
  /// The exit code of a verb that a signal interrupted while it wrote its file.
  int fail_interrupted();

  /// From now on a signal's document has what the document has so far. Signals must be deferred.
  void keep_for_interrupts();

  /// With --quiet the context logs nothing.
  void apply_to(Context& context) const;

  /// Writes the document and gives the exit code, which is 1 when stdout could not be written.
  int finish(int exit_code);

 private:
  std::string document_text(const Json& content, int exit_code) const;

  std::string verb_;
  OutputOptions options_;
  bool colour_;
  Json document_ = Json::object();
  InterruptDocuments interrupt_documents_;
};

/// Text on stderr. A failure to write it is not reported: exit codes stay as documented.
void complain(std::string_view text);

/// `exit_code` where standard output took all that was printed; otherwise a complaint, and 1 in
/// place of 0.
int flush_stdout(int exit_code);

/// Rows of cells, columns as wide as their widest cell.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> cells, std::vector<Colour> colours = {});
  std::string text(const Output& output) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::vector<Colour> colours;  // of the first cells; the rest is plain
  };
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

/// A bar on stderr, there only when stderr is a terminal and the output is for people without
/// --quiet. It redraws
/// at most ten times a second and disappears with the object.
class Progress {
 public:
  Progress(const Output& output, std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// `seconds_left`: shown as minutes and seconds; below 0 it is not known.
  void update(std::int64_t done, double seconds_left = -1.0);
  /// Takes the bar away, so that a line can be printed; the next update draws it again.
  void clear();

 private:
  std::string label_;
  std::int64_t total_;
  bool enabled_;
  bool drawn_ = false;
  std::int64_t last_ns_ = 0;
};

/// `text` with control characters escaped: nothing that a terminal would obey.
std::string printable(std::string_view text);

std::string bytes_text(std::int64_t bytes);  // "12 B", "3.1 KiB", ...
std::string seconds_text(double seconds);    // "12.3 us", ...

/// A Selection's text with its marks coloured.
std::string highlight(const Output& output, const std::string& selection_text);

}  // namespace regard::cli
