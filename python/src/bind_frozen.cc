#include "bind_frozen.h"

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bind_policy.h"
#include "errors.h"
#include "process_context.h"
#include "regard/case.h"
#include "regard/frozen.h"

namespace regard::python {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

void record(const nb::object& path) {
  const char* const name =
      path.is_none() ? "" : read_text(path.ptr(), "path", "a file's name or None");
  const Status status = process_context().set_record(name);
  if (!status.ok()) raise_status(status);
}

std::vector<AttentionParams> cases_of(const nb::object& given) {
  constexpr const char* kAccepted = "a case, as 'b1 hq8 sq128 d64', or a list of cases";
  std::vector<AttentionParams> cases;
  const auto add = [&](nb::handle words) {
    const Expected<Case> c = parse_case(read_text(words.ptr(), "cases", kAccepted));
    if (!c) raise_status(c.status());
    cases.push_back(c->params);
  };
  if (!PyList_Check(given.ptr()) && !PyTuple_Check(given.ptr())) {
    add(given);
    return cases;
  }
  for (nb::handle words : given) add(words);
  return cases;
}

nb::str freeze_text(const nb::object& cases) {
  const AmbientScopes scopes;
  const Expected<FrozenDecisions> frozen = freeze(process_context(), cases_of(cases));
  if (!frozen) raise_status(frozen.status());
  return nb::str(to_string(*frozen).c_str());
}

FrozenDecisions parsed(const nb::object& text, const char* name) {
  Expected<FrozenDecisions> frozen =
      parse_frozen(read_text(text.ptr(), name, "a text of regard.freeze"), name);
  if (!frozen) raise_status(frozen.status());
  return *std::move(frozen);
}

void replay(const nb::object& text) {
  FrozenDecisions frozen;
  if (!text.is_none()) frozen = parsed(text, "text");
  const AmbientScopes scopes;
  const Status status = process_context().set_replay(std::move(frozen));
  if (!status.ok()) raise_status(status);
}

nb::list differences(const nb::object& a, const nb::object& b) {
  nb::list list;
  for (const FrozenDifference& d : diff(parsed(a, "a"), parsed(b, "b"))) {
    list.append(nb::make_tuple(to_string(d.cause), d.what, d.a, d.b));
  }
  return list;
}

}  // namespace

void bind_frozen(nb::module_& module) {
  module.def("record", &record, "path"_a.none(),
             R"(Counts the case of every call of this process in a file; None ends it.

`regard bench FILE` measures what a file holds. A file that is there is added to.

    >>> import regard
    >>> regard.record(None)

Raises ValueError for a path that cannot become a record.

More: `python -m regard docs self_check`.)");
  module.def(
      "freeze", &freeze_text, "cases"_a,
      R"(What runs for a case, or for each of a list of cases, on this machine: a text for a file.

    >>> import regard
    >>> regard.freeze('b1 hq8 sq128 d64 f32').splitlines()[0]
    'regard-frozen 1'

Raises ValueError for words that are no case.

More: `python -m regard docs self_check`.)");
  module.def("replay", &replay, "text"_a.none(),
             R"(Holds this process to the decisions of a text of regard.freeze; None ends it.

    >>> import regard
    >>> regard.replay(regard.freeze('b1 hq8 sq128 d64 f32'))
    >>> regard.replay(None)

Raises ValueError with every difference where this machine decides otherwise, and changes nothing
then. A later call whose decision differs raises ValueError, too.

More: `python -m regard docs self_check`.)");
  module.def("diff", &differences, "a"_a, "b"_a,
             R"(How two texts of regard.freeze differ: a list of tuples (cause, what, a, b).

    >>> import regard
    >>> text = regard.freeze('b1 hq8 sq128 d64 f32')
    >>> regard.diff(text, text)
    []

Raises ValueError for other texts.

More: `python -m regard docs self_check`.)");
}

}  // namespace regard::python
