#pragma once

#include <deque>
#include <string>

#include "regard/regard.h"
#include "regard/request.h"

namespace regard::test {

/// DLPack's name of an element type.
regard_dtype c_dtype(Dtype dtype);

/// Views in the structs of the C ABI. What it hands out lives as long as it does.
class CTensors {
 public:
  /// Null for an absent view.
  regard_tensor* make(const TensorView& view);

 private:
  struct Entry {
    TensorView view;
    regard_tensor tensor;
  };
  std::deque<Entry> entries_;
};

/// A request of the C++ interface as a regard_request.
class CRequest {
 public:
  explicit CRequest(const AttentionRequest& from);
  CRequest(const CRequest&) = delete;
  CRequest& operator=(const CRequest&) = delete;
  regard_request* get() noexcept { return &request; }
  regard_request* operator->() noexcept { return &request; }

  regard_request request = regard_request_default();

 private:
  AttentionOptions options_;
  regard_dtype dtype_d_out_{}, dtype_gradients_{};
  regard_score_callback callback_{};
  CTensors tensors_;
};

/// What a backward has besides its request, as a regard_gradients; without a plan.
class CGradients {
 public:
  explicit CGradients(const GradBuffers& from);
  CGradients(const CGradients&) = delete;
  CGradients& operator=(const CGradients&) = delete;
  regard_gradients* get() noexcept { return &gradients; }

  regard_gradients gradients = regard_gradients_default();

 private:
  CTensors tensors_;
};

/// Calls f(buffer, capacity, needed) twice, as a caller does who does not know the size. The text,
/// or the error in brackets.
template <class F>
std::string text_of(F&& f) {
  std::size_t needed = 0;
  if (f(nullptr, 0, &needed) != REGARD_STATUS_OK) return std::string("<") + regard_last_error();
  std::string text(needed, '?');
  if (f(text.data(), text.size(), &needed) != REGARD_STATUS_OK) return "second call failed";
  if (needed != text.size() || text.back() != '\0') return "wrong size";
  text.pop_back();
  return text;
}

}  // namespace regard::test
