#include "python_selection.h"

#include "regard/backend.h"
#include "saved.h"

namespace regard::python {
namespace {

bool has_backward(const Plan& plan) { return !plan.backward_kernel().kernel.empty(); }

/// What `regard explain` prints below the table.
std::string plan_text(const Plan* plan) {
  if (plan == nullptr) return "";
  std::string out = "\nplan     " + to_string(plan->kernel()) + "\n";
  if (has_backward(*plan)) out += "backward " + to_string(plan->backward_kernel()) + "\n";
  return out;
}

/// As `regard explain --json` gives it.
nb::object plan_dict(const Plan* plan) {
  if (plan == nullptr) return nb::none();
  nb::dict fields = plan_fields(plan->kernel());
  if (has_backward(*plan)) fields["backward"] = plan_fields(plan->backward_kernel());
  return fields;
}

}  // namespace

nb::object python_selection(const Selection& selection, const std::vector<std::string>& notes,
                            const Plan* plan) {
  nb::list lines;
  for (const std::string& note : notes) lines.append(note.c_str());
  const std::string below = plan_text(plan);
  const nb::object type = nb::module_::import_("regard._selection").attr("Selection");
  return type((to_string(selection) + below).c_str(),
              (to_string(selection, /*verbose=*/true) + below).c_str(), to_json(selection).c_str(),
              lines, plan_dict(plan));
}

}  // namespace regard::python
