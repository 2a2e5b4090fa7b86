#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tools/llm/commands.h"
#include "tools/llm/session.h"
#include "tools/llm/terminal.h"

namespace llm {

int run_list() {
  for (const std::string& name : list_models()) print(name + "\n");
  return finish(kOk);
}

int run_where(const Options& options) {
  const regard::Expected<std::string> path = find_model(options.name);
  if (!path) return fail(path.status());
  print(*path + "\n");
  return finish(kOk);
}

int run_export(int argc, char** argv) {
  std::vector<char*> words;
  for (const char* word : {"python3", "-m", "regard.llm", "export"}) {
    words.push_back(const_cast<char*>(word));
  }
  words.insert(words.end(), argv, argv + argc);
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  complain(std::string("regard-llm: cannot run python3: ") + std::strerror(errno) + "\n");
  return kFailed;
}

}  // namespace llm
