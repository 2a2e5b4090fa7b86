#include "platform/running_threads.h"

#if defined(__linux__)
#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>

#include "platform/read_file.h"
#endif

namespace regard {

#if defined(__linux__)

int count_running_threads() {
  constexpr const char* kFolder = "/proc/self/task";
  const auto close = [](DIR* folder) { closedir(folder); };
  const std::unique_ptr<DIR, decltype(close)> folder(opendir(kFolder), close);
  if (folder == nullptr) return 0;
  const std::string own = std::to_string(syscall(SYS_gettid));
  int running = 0;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] == '.' || entry->d_name == own) continue;
    // "17 (name, with any character) R ..."
    const std::string stat = read_system_file(std::string(kFolder) + "/" + entry->d_name + "/stat");
    const std::size_t name_end = stat.rfind(')');
    if (name_end != std::string::npos && stat.compare(name_end, 3, ") R") == 0) ++running;
  }
  return running;
}

#else

int count_running_threads() { return 0; }

#endif

}  // namespace regard
