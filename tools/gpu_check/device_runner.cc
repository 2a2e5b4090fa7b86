#include "tools/gpu_check/device_runner.h"

#include <cstring>
#include <string>
#include <vector>

#include "regard/tensors.h"

namespace regard::gpu_check {
namespace {

using conformance::MemoryRange;

Status failed(const std::string& what) {
  return Status(StatusCode::kInternal, "[gpu_check] " + what);
}

// Copies of host ranges on the device.
class Twin {
 public:
  Twin(DeviceMemory& memory, const std::vector<MemoryRange>& ranges)
      : memory_(memory), ranges_(ranges), copies_(ranges.size(), nullptr) {}
  ~Twin() {
    for (void* copy : copies_) memory_.free(copy);
  }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  Status upload() {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      copies_[i] = memory_.allocate(ranges_[i].size);
      if (copies_[i] == nullptr) return failed("the device has no memory left");
      if (!memory_.upload(copies_[i], ranges_[i].data, ranges_[i].size)) {
        return failed("copying to the device failed");
      }
      // Until they come back: a view that was left behind is then seen where the host plays the
      // device, too.
      std::memset(ranges_[i].data, 0xa5, ranges_[i].size);
    }
    return {};
  }
  Status download() {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (!memory_.download(ranges_[i].data, copies_[i], ranges_[i].size)) {
        return failed("copying from the device failed");
      }
    }
    return {};
  }
  /// Where the byte at `host` lies there.
  void* place(const void* host) const {
    const auto* at = static_cast<const unsigned char*>(host);
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const MemoryRange& range = ranges_[i];
      if (at < range.data || at >= range.data + range.size) continue;
      return static_cast<unsigned char*>(copies_[i]) + (at - range.data);
    }
    return nullptr;  // of an empty tensor
  }
  void move(TensorView* view) const {
    view->data = place(view->data);
    view->device = memory_.device();
  }

 private:
  DeviceMemory& memory_;
  const std::vector<MemoryRange>& ranges_;
  std::vector<void*> copies_;
};

AttentionGradRequest moved(const AttentionGradRequest& request, const Twin& twin) {
  AttentionGradRequest r = request;
  for (const TensorSpec& spec : kTensors) {
    twin.move(spec.buffer != nullptr ? &(r.*spec.buffer) : spec.in(&r));
  }
  return r;
}

struct Launcher {
  const conformance::DeviceRunner::Call& call;
  AttentionGradRequest request;
  Launch launch;

  static Status start(void* state) {
    const auto& l = *static_cast<Launcher*>(state);
    const Status ready = l.call.backward ? prepare_backward(l.call.plan, l.request, l.request)
                                         : prepare(l.call.plan, l.request);
    if (!ready.ok()) return ready;
    return l.call.backward ? execute_backward(l.call.plan, l.request, l.request, l.launch)
                           : execute(l.call.plan, l.request, l.launch);
  }
};

}  // namespace

Status CudaDeviceRunner::run(const Call& call) {
  Twin twin(memory_, call.memory);
  if (Status status = twin.upload(); !status.ok()) return status;
  Launcher launcher{call, moved(call.request, twin), {}};
  launcher.launch.stream = memory_.stream();
  launcher.launch.workspace = {twin.place(call.workspace.data), call.workspace.bytes};
  const bool replays = captures_ && calls_ >= (call.backward ? 2 : 1);
  ++calls_;
  Status status = replays ? memory_.replay(Launcher::start, &launcher) : Launcher::start(&launcher);
  const std::string error = memory_.wait();
  const Status back = twin.download();
  if (!status.ok()) return status;
  return error.empty() ? back : failed(error);
}

}  // namespace regard::gpu_check
