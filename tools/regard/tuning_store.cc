#include "tools/regard/tuning_store.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "distributed/stable_hash.h"
#include "tools/files/mapped_bytes.h"
#include "tools/files/pending_file.h"
#include "tools/files/quote.h"

namespace regard::cli {
namespace {

/// "" where there is no such file.
Expected<std::string> read_entry(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  constexpr std::uintmax_t kMaxBytes = 1 << 20;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMaxBytes) {
    return Status(StatusCode::kInvalidArgument, "it is no regular file of at most 1 MiB");
  }
  const Expected<files::MappedBytes> mapped = files::MappedBytes::open(path, "tune");
  if (!mapped) return mapped.status();
  const auto bytes = mapped->bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Whether the two tables are of one environment.
bool same_machine(const TuningTable& a, const TuningTable& b) {
  return a.version == b.version && a.isa == b.isa && a.cpu_model == b.cpu_model &&
         a.concurrency == b.concurrency;
}

}  // namespace

TuningTable table_of(const Env& env) {
  TuningTable table;
  table.version = env.version;
  table.isa = to_string(env.isa);
  table.cpu_model = env.cpu_model;
  table.concurrency = env.concurrency;
  table.costs.rates.isa = env.isa;
  table.costs.rates.threads = env.concurrency;
  return table;
}

TuningStore::TuningStore(const Env& env, int rounds)
    : folder_(fmt::format("{}/rounds_{}", tuning_folder(env), rounds)), env_(env) {}

std::string TuningStore::path_of(const std::string& words) const {
  return fmt::format("{}/{:016x}.entry", folder_, stable_hash(words));
}

std::vector<TuningTable::Time> TuningStore::find(const std::string& words,
                                                 std::vector<std::string>* dropped) const {
  const std::string path = path_of(words);
  const auto drop = [&](const std::string& reason) {
    dropped->push_back(std::filesystem::path(path).filename().string() + ": " + reason);
    return std::vector<TuningTable::Time>();
  };
  const Expected<std::string> text = read_entry(path);
  if (!text) return drop(text.status().message());
  if (text->empty() && !std::filesystem::exists(path)) return {};
  if (!text->starts_with("regard-tuning 1\nlines ")) return drop("it is no whole entry");
  Expected<TuningTable> entry = parse_tuning_table(*text, "entry");
  if (!entry) return drop(entry.status().message());
  if (!same_machine(*entry, table_of(env_))) return drop("it was measured in another environment");
  for (const TuningTable::Time& time : entry->times) {
    if (to_string(time.observation.params) != words) return drop("it is of another problem");
  }
  if (entry->times.empty()) return drop("it has no times");
  return std::move(entry->times);
}

Status TuningStore::keep(const std::string& words, std::vector<TuningTable::Time> times) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    return Status(StatusCode::kInternal,
                  fmt::format("[tune] cannot make {}: {}", files::quote(folder_), error.message()));
  }
  TuningTable table = table_of(env_);
  table.times = std::move(times);
  const std::string path = path_of(words);
  const std::string failed = files::replace_file(path, to_text(table));
  if (failed.empty()) return {};
  return Status(StatusCode::kInternal,
                fmt::format("[tune] cannot write {}: {}", files::quote(path), failed));
}

}  // namespace regard::cli
