// docs/support_matrix.md is what the backends' records claim.

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "backends/cuda_efficient/efficient_backend.h"
#include "backends/cuda_flash/flash_backend.h"
#include "backends/cuda_math/math_backend.h"
#include "backends/cudnn/info.h"
#include "regard/context.h"
#include "tests/docs/document.h"
#include "tools/guide/support.h"

namespace regard {
namespace {

using guide::SupportCell;
using guide::SupportMatrix;
using guide::SupportRow;

std::string code(const std::string& text) { return std::string("`").append(text) + "`"; }

std::string line(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& cell : cells) text += " " + cell + " |";
  return text + "\n";
}

std::string head(std::vector<std::string> names) {
  const std::size_t columns = names.size();
  std::string text = line(names) + "|";
  for (std::size_t i = 0; i < columns; ++i) text += "---|";
  return text + "\n";
}

std::string word(const SupportCell& cell) {
  switch (cell.kind) {
    case SupportCell::Kind::kYes: return cell.text;
    case SupportCell::Kind::kNo: return "-";
    case SupportCell::Kind::kNotApplicable: break;
  }
  return "";
}

/// A column for each backend, and one for its gradients.
std::string table(const SupportMatrix& matrix, const char* what,
                  const std::vector<SupportRow>& rows, bool with_bounds) {
  std::vector<std::string> names = {what};
  for (const std::string& backend : matrix.backends) {
    names.push_back(code(backend));
    names.push_back("gradients");
  }
  std::string text = head(names);
  for (const SupportRow& row : rows) {
    std::vector<std::string> cells = {code(row.name)};
    for (std::size_t i = 0; i < matrix.backends.size(); ++i) {
      cells.push_back(word(row.forward[i]));
      const bool yes = row.backward[i].kind == SupportCell::Kind::kYes;
      cells.push_back(with_bounds && yes ? "yes" : word(row.backward[i]));
    }
    text += line(cells);
  }
  return text;
}

std::string document_of(const SupportMatrix& matrix) {
  std::vector<std::string> names = {"limit"};
  for (const std::string& backend : matrix.backends) names.push_back(code(backend));
  std::string text = "\n" + head(names);
  for (const guide::SupportLimit& limit : matrix.limits) {
    std::vector<std::string> cells = {limit.name};
    cells.insert(cells.end(), limit.values.begin(), limit.values.end());
    text += line(cells);
  }
  text += "\n" + table(matrix, "types, with the error bound", matrix.types, true);
  text += "\n" + table(matrix, "feature", matrix.features, false);
  text +=
      "\nThe reasons, as `explain` states them:\n\n" + head({"request", "refused by", "reason"});
  for (const guide::RefusedRequest& refused : guide::refused_requests(matrix)) {
    std::string backends;
    for (const std::string& name : refused.backends) {
      backends += (backends.empty() ? "" : ", ") + code(name);
    }
    text += line({code(refused.request), backends, refused.sentence});
  }
  for (const guide::AbsentBackend& absent : matrix.absent) {
    text += "\nNot in this version: " + code(absent.name) + ", " + absent.reason + ".\n";
  }
  return text + "\n";
}

TEST(SupportMatrix, OfCpusIsInTheDocument) {
  const Context context;
  const SupportMatrix matrix = guide::support_matrix(context.backends(), DeviceType::kCpu);
  ASSERT_EQ(matrix.backends.size(), 3u);
  test::expect_block("support_matrix.md", "claims", document_of(matrix));
}

/// The records themselves: no build needs a device, a toolkit or cuDNN's headers for them.
std::vector<BackendInfo> cuda_records() {
  return {cudnn::make_info(), cuda_flash::make_info(), cuda_efficient::make_info(),
          cuda_math::make_info()};
}

TEST(SupportMatrix, OfCudaDevicesIsInTheDocument) {
  test::expect_block("support_matrix.md", "cuda claims",
                     document_of(guide::support_matrix(cuda_records(), DeviceType::kCuda)));
}

// The records of the document are those of the backends that a build has.
TEST(SupportMatrix, CudaBackendsHaveTheRecordsOfTheDocument) {
  const Context context;
  if (!context.env().built_with_cuda) GTEST_SKIP() << "built without CUDA";
  const std::vector<BackendInfo> infos = context.backends();
  for (const BackendInfo& info : infos) {
    const bool is_cudnn = info.ref.id == BackendId::kCudnn;
    if (is_cudnn && !info.built) GTEST_SKIP() << info.not_built_reason;
  }
  EXPECT_EQ(document_of(guide::support_matrix(infos, DeviceType::kCuda)),
            document_of(guide::support_matrix(cuda_records(), DeviceType::kCuda)));
}

}  // namespace
}  // namespace regard
