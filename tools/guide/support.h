#pragma once

#include <string>
#include <vector>

#include "regard/backend.h"

// The support matrix: what each backend's record claims, and the sentence of each refusal.

namespace regard::guide {

/// One backend in one direction.
struct SupportCell {
  enum class Kind { kYes, kNo, kNotApplicable };
  Kind kind = Kind::kNotApplicable;
  std::string text;  // kYes: the error bound of types, "yes" of features; kNo: the refusal
  friend bool operator==(const SupportCell&, const SupportCell&) = default;
};

struct SupportRow {
  std::string name;                   // "f32", "bf16, out f32", "softcap"
  std::vector<SupportCell> forward;   // one for each backend
  std::vector<SupportCell> backward;  // the same of gradients
};

/// A limit that is no yes or no: "head_dim_qk": "1 to 576".
struct SupportLimit {
  std::string name;
  std::vector<std::string> values;  // one for each backend
};

/// A backend that this build lacks.
struct AbsentBackend {
  std::string name;
  std::string reason;
};

struct SupportMatrix {
  std::vector<std::string> backends;  // those that are built, in the order of preference
  std::vector<SupportRow> types;
  std::vector<SupportRow> features;
  std::vector<SupportRow> sizes;  // the first that some backend refuses: "head_dim_qk 577"
  std::vector<SupportLimit> limits;
  std::vector<AbsentBackend> absent;
};

/// The matrix of a device's backends. With `env` what holds on that machine; without, error bounds
/// are stated for every instruction set, as documents do.
SupportMatrix support_matrix(const std::vector<BackendInfo>& infos, DeviceType device,
                             const Env* env = nullptr);

/// A request that some backends refuse for the same reason.
struct RefusedRequest {
  std::string request;  // "f64", "paged, gradients"
  std::vector<std::string> backends;
  std::string sentence;
};
/// Of gradients those alone whose forward is not refused.
std::vector<RefusedRequest> refused_requests(const SupportMatrix& matrix);

}  // namespace regard::guide
