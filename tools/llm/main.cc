#include <unistd.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "distributed/launcher.h"
#include "tools/llm/commands.h"
#include "tools/llm/messages.h"
#include "tools/llm/mpi_ranks.h"
#include "tools/llm/terminal.h"

namespace {

/// Between parallel loops libgomp's threads spin for some milliseconds, on a busy machine while the
/// thread that they wait for has no CPU: there, 1,000 turns give 20 times the tokens a second; on a
/// quiet one it costs at most 3 %. libgomp reads the variable before main, so the program starts
/// again with it.
void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  std::error_code error;  // by its path, so that ps and top show its name and not "exe"
  ::execv(std::filesystem::read_symlink("/proc/self/exe", error).c_str(), argv);
}

int run(int argc, char** argv) {
  // Their ranks would each do all of it, and write over one another's output.
  if (regard::distributed::ranks_of_launcher() > 1 && argc > 1 && argv[1][0] != '-' &&
      std::strcmp(argv[1], "generate") != 0) {
    return llm::refuse_on_ranks("verb (" + llm::quote(argv[1]) + ") must be generate under mpirun");
  }
  if (argc > 1 && std::strcmp(argv[1], "export") == 0) {
    return llm::run_export(argc - 2, argv + 2);
  }
  CLI::App app("Language models of the llama architecture (GGUF files) on regard's attention",
               "regard-llm");
  app.require_subcommand(1);
  llm::Options options;
  int code = 0;
  CLI::App* const generate = app.add_subcommand("generate", "continues a text");
  llm::add_generate(*generate, &options);
  generate->callback([&] {
    options.has_page_size = generate->count("--page-size") > 0;
    code = llm::run_generate(options);
  });
  CLI::App* const chat = app.add_subcommand("chat", "answers, message by message");
  llm::add_chat(*chat, &options);
  chat->callback([&] {
    options.has_prompt = chat->count("--prompt") > 0;
    code = llm::run_chat(options);
  });
  CLI::App* const eval = app.add_subcommand("eval", "the perplexity of a text file");
  llm::add_eval(*eval, &options);
  eval->callback([&] { code = llm::run_eval(options); });
  CLI::App* const bench =
      app.add_subcommand("bench", "rates of prefill and decode, beside the machine's");
  llm::add_bench(*bench, &options);
  bench->callback([&] { code = llm::run_bench(options); });
  app.add_subcommand("list", "the models in the model directory")->callback([&] {
    code = llm::run_list();
  });
  CLI::App* const where = app.add_subcommand("where", "the path of a model");
  llm::add_where(*where, &options);
  where->callback([&] { code = llm::run_where(options); });
  app.add_subcommand("export", "exports a model: python3 -m regard.llm export");
  const auto is_named = [&](const CLI::App* verb) { return verb->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && std::as_const(app).get_subcommands(is_named).empty()) {
    llm::complain("regard-llm: verb (" + llm::quote(argv[1]) +
                  ") must be generate, chat, eval, bench, list, where or export\n");
    return llm::kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, complaints;
    const int ended = app.exit(error, out, complaints);
    llm::print(out.str());
    llm::complain(complaints.str());
    return ended == 0 ? llm::finish(llm::kOk) : llm::kUsage;
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  limit_spinning(argv);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that is gone is an error that is reported
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    llm::complain(std::string("regard-llm: ") + error.what() + "\n");
    return llm::kFailed;
  }
}
