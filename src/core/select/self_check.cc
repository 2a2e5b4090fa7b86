#include "regard/self_check.h"

#include "base/message.h"

namespace regard {

std::string self_check_refusal(const AttentionParams& params) {
  if (params.device.type != DeviceType::kCpu) return "its tensors lie on a CUDA device";
  return "";
}

std::string SelfCheckViolation::to_string() const {
  std::string text = concat("self-check: ", regard::to_string(backend), " (", kernel, ") computed ",
                            output, " of batch ", batch, ", head ", head, ", row ", row,
                            " with an error of ", number_text(error), ", the tolerance is ",
                            number_text(tolerance), "; case ", regard::to_string(params));
  if (denied) text += concat("; ", regard::to_string(backend), " may not run any more");
  if (!file.empty()) text += concat("; its tensors are in ", file);
  if (!not_written.empty()) text += concat("; its tensors were not written: ", not_written);
  if (!command.empty()) text += concat("; reproduce with: ", command);
  return text;
}

}  // namespace regard
