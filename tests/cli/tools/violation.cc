#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "conformance/problem.h"
#include "faulty_backend.h"
#include "regard/case.h"
#include "tests/support/tensors.h"

// A call on a FLASH that computes wrong rows, and what its self-check says: the command line runs
// what a violation gives to reproduce it (tests/cli/test_violation.py).
//
// usage: violation FOLDER CASE
// FOLDER receives the file of the violation, and the call's out in out.bin. Prints the file, the
// command, the backend's output, and "batch head row error".

namespace regard::test {
namespace {

void ignore_line(void*, LogLevel, std::string_view) {}

int run(const std::string& folder, const std::string& words) {
  const Expected<Case> c = parse_case(words);
  if (!c) return std::cerr << c.status().message() << '\n', 2;
  conformance::Problem problem = conformance::make_problem(*c);
  AttentionRequest request = problem.request();
  request.rng_offset = 0;  // files of the command line have none

  Context context(read_env());
  context.set_log_sink(ignore_line, nullptr);
  const auto faulty = std::make_shared<FaultyBackend>(backend_of(context, kFlash));
  faulty->every = 1;
  ContextImpl::of(context).update([&](Settings& settings) {
    for (BackendEntry& entry : settings.cpu) {
      if (entry.ref == kFlash) entry.backend = faulty;
    }
  });
  Policy policy = only({kFlash});
  policy.self_check = 1;
  policy.self_check_dir = folder;
  const Status status = attention(context, request, policy);
  if (!status.ok()) return std::cerr << status.message() << '\n', 1;

  const std::vector<SelfCheckViolation> found = context.self_check_violations();
  if (found.size() != 1) return std::cerr << found.size() << " violations\n", 1;
  const std::vector<unsigned char> out = problem.output_bytes();
  std::ofstream(folder + "/out.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size()));
  const SelfCheckViolation& v = found[0];
  std::printf("%s\n%s\n%s\n%lld %lld %lld %.17g\n", v.file.c_str(), v.command.c_str(),
              v.output.c_str(), static_cast<long long>(v.batch), static_cast<long long>(v.head),
              static_cast<long long>(v.row), v.error);
  return 0;
}

}  // namespace
}  // namespace regard::test

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "usage: violation FOLDER CASE\n", 2;
  return regard::test::run(argv[1], argv[2]);
}
