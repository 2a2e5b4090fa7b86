#include "python_selection.h"

namespace regard::python {

namespace nb = nanobind;

nb::object python_selection(const Selection& selection, const std::vector<std::string>& notes,
                            nb::object plan) {
  nb::list lines;
  for (const std::string& note : notes) lines.append(note.c_str());
  const nb::object type = nb::module_::import_("regard._selection").attr("Selection");
  return type(to_string(selection).c_str(), to_json(selection).c_str(), lines, plan);
}

}  // namespace regard::python
