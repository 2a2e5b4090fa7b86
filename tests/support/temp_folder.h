#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

// CTest runs each test of a fixture as a process of its own, beside the others: a folder with a
// fixed name would be shared by them.

namespace regard::test {

/// An empty folder that no other process uses; removed with all that is in it.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "regard-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace regard::test
