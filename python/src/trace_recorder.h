#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "regard/trace.h"

namespace regard::python {

/// A call that was made while a regard.trace was open.
struct RecordedCall {
  CallTrace call;
  std::string layer;  // "": unknown
  std::uint64_t thread = 0;
  bool by_formula = false;  // PyTorch's operators computed it: it has no plan
};

/// The calls of one regard.trace. Safe to use from many threads.
class Recording {
 public:
  Recording() = default;
  ~Recording() { close(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// From here on every call of this process is recorded, of any thread, until close().
  void open();
  void close();
  std::vector<std::shared_ptr<const RecordedCall>> calls() const;

 private:
  friend class Recorder;
  std::vector<std::shared_ptr<const RecordedCall>> calls_;
};

/// Whether any Recording is open: one relaxed load.
bool is_recording() noexcept;

/// Hands a call of this thread to every open Recording.
void record_call(RecordedCall call);

/// Names the layer of the calls that this thread makes in its scope.
class LayerScope {
 public:
  explicit LayerScope(const std::string& layer) noexcept;
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  const std::string* outer_;
};

}  // namespace regard::python
