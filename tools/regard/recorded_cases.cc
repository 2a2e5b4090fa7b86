#include "tools/regard/recorded_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "regard/case.h"
#include "tools/files/mapped_bytes.h"
#include "tools/files/quote.h"

namespace regard::cli {
namespace {

bool may_be_record(const ProblemWords& problem) {
  return problem.is_file && !problem.text.ends_with(".safetensors");
}

}  // namespace

std::vector<CountedProblem> cases_of(const Record& record) {
  std::vector<CountedProblem> problems;
  for (const RecordedCase& recorded : record.cases) {
    const bool backward = recorded.direction == Direction::kBackward;
    const Expected<Case> c = parse_case(recorded.words + (backward ? " grad" : ""));
    const std::string words = c ? to_string(*c) : recorded.words;
    const auto same = [&](const CountedProblem& p) { return p.words.text == words; };
    const auto found = std::find_if(problems.begin(), problems.end(), same);
    if (found == problems.end()) {
      problems.push_back({{words, false}, recorded.count});
    } else {
      found->calls = std::max(found->calls, recorded.count);
    }
  }
  return problems;
}

Expected<std::string> read_text(const std::string& path) {
  constexpr std::size_t kMaxBytes = 64 << 20;
  const Expected<files::MappedBytes> file = files::MappedBytes::open(path, "read");
  if (!file) return file.status();
  const auto bytes = file->bytes();
  if (bytes.size() > kMaxBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} has {} bytes, expected at most {}", files::quote(path),
                              bytes.size(), kMaxBytes));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Expected<std::vector<CountedProblem>> expand_records(const std::vector<ProblemWords>& problems) {
  std::vector<CountedProblem> all;
  for (const ProblemWords& problem : problems) {
    if (!may_be_record(problem)) {
      all.push_back({problem, 0});
      continue;
    }
    const Expected<std::string> text = read_text(problem.text);
    if (!text) return text.status();
    if (!is_record(*text) && !problem.text.ends_with(".record")) {
      all.push_back({problem, 0});
      continue;
    }
    const Expected<Record> record = parse_record(*text, files::quote(problem.text));
    if (!record) return record.status();
    const std::vector<CountedProblem> cases = cases_of(*record);
    if (cases.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} holds no case", files::quote(problem.text)));
    }
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace regard::cli
