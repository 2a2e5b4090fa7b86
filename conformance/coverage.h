#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "conformance/run.h"
#include "regard/backend.h"

namespace regard::conformance {

/// What a run of random cases has been through: features, pairs of them a backend, layouts, kinds.
class Coverage {
 public:
  void add_case(const PreparedCase& prepared);
  void add_run(const PreparedCase& prepared, const BackendRef& backend, Outcome outcome);

  std::int64_t cases() const noexcept { return cases_; }
  std::int64_t count(Feature feature) const noexcept {
    return features_[static_cast<std::size_t>(feature)];
  }
  /// Cases that ran on the backend and have both features (a case itself where they are the same).
  std::int64_t count(const BackendRef& backend, Feature a, Feature b) const;
  /// Cases with a trait: "dead rows", "poison", "empty", "data large", "q bshd", "packed qkv", ...
  std::int64_t count(const std::string& trait) const;

  /// Pairs of features that the backend claims and that fewer than `at_least` cases had; pairs that
  /// exclude each other (causal with a right bound, two diagonals) aside.
  std::vector<std::string> missing_pairs(const BackendInfo& info, std::int64_t at_least) const;

  /// Everything, for people.
  std::string table() const;

 private:
  using PairCounts = std::vector<std::int64_t>;  // kFeatureCount^2
  struct BackendCounts {
    std::string name;
    std::int64_t outcomes[3] = {};
    PairCounts pairs = PairCounts(kFeatureCount * kFeatureCount);
  };
  const BackendCounts* find(const BackendRef& backend) const;
  void add_trait(const std::string& trait, bool present = true);
  void add_memory_traits(const PreparedCase& prepared);
  void add_function_traits(const PreparedCase& prepared);
  std::string pairs_line(const BackendCounts& counts) const;

  std::int64_t cases_ = 0;
  std::int64_t features_[kFeatureCount] = {};
  std::map<std::string, std::int64_t> traits_;
  std::vector<BackendCounts> backends_;
};

/// The features of the case, poison counted as kNonFiniteBehindMask.
FeatureSet features_of(const Case& c);

}  // namespace regard::conformance
