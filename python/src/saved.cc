#include "saved.h"

#include <nanobind/stl/optional.h>

#include <optional>
#include <string>

#include "arguments.h"
#include "bind_policy.h"
#include "errors.h"
#include "regard/backend.h"

namespace regard::python {
namespace {

using nb::literals::operator""_a;

const char* name_of(SavedContext::Kind kind) {
  return kind == SavedContext::Kind::kLse ? "lse" : "stats";
}

void make_saved(Saved* self, nb::object stats, nb::object lse, nb::object seed, nb::object offset,
                nb::object backend, nb::object max_error) {
  if (stats.is_none() == lse.is_none()) {
    raise_type("regard.Saved() takes stats or lse, and " +
               std::string(stats.is_none() ? "neither was" : "both were") + " given");
  }
  Saved saved;
  saved.kind = lse.is_none() ? SavedContext::Kind::kStats : SavedContext::Kind::kLse;
  saved.stats = lse.is_none() ? stats : lse;
  saved.rng_seed = read_uint64(seed.ptr(), "seed");
  saved.rng_offset = read_uint64(offset.ptr(), "offset");
  if (!backend.is_none()) saved.backend = read_backend(backend.ptr(), "backend");
  if (!max_error.is_none()) saved.max_error = read_double(max_error.ptr(), "max_error");
  new (self) Saved(std::move(saved));
}

nb::object saved_backend(const Saved& self) {
  return self.backend ? nb::object(nb::str(to_string(*self.backend).c_str())) : nb::none();
}

nb::object saved_plan(const Saved& self) {
  if (self.plan.empty()) return nb::none();
  nb::dict fields;
  fields["forward"] = plan_fields(self.plan.kernel());
  fields["backward"] = plan_fields(self.plan.backward_kernel());
  return fields;
}

/// What pickle calls with: the plan is made again, as it was, where it is needed.
nb::tuple reduce(nb::handle object) {
  const auto& self = nb::cast<const Saved&>(object);
  const bool lse = self.kind == SavedContext::Kind::kLse;
  return nb::make_tuple(
      object.type(),
      nb::make_tuple(lse ? nb::none() : self.stats, lse ? self.stats : nb::none(), self.rng_seed,
                     self.rng_offset, saved_backend(self), self.max_error));
}

}  // namespace

nb::dict plan_fields(const KernelPlan& kernel) {
  nb::dict fields;
  fields["kernel"] = kernel.kernel.c_str();
  fields["isa"] = to_string(kernel.isa);
  fields["workers"] = kernel.workers;
  fields["tile_q"] = kernel.tile_q;
  fields["tile_kv"] = kernel.tile_kv;
  fields["workspace_bytes"] = kernel.workspace_bytes;
  fields["variant"] = kernel.variant.empty() ? "default" : kernel.variant.c_str();
  return fields;
}

void bind_saved(nb::module_& module) {
  nb::class_<Saved>(module, "Saved",
                    "What regard.attention_backward needs of its forward; attention(..., "
                    "return_saved=True) makes it,\nor a caller of an lse that was merged.")
      .def("__init__", &make_saved, "stats"_a = nb::none(), "lse"_a = nb::none(), "seed"_a = 0,
           "offset"_a = 0, "backend"_a = nb::none(), "max_error"_a = nb::none())
      .def_prop_ro(
          "stats", [](const Saved& self) { return self.stats; },
          "[B,H,S,2], the rows' maxima and sums, or the lse [B,H,S].")
      .def_prop_ro(
          "kind", [](const Saved& self) { return name_of(self.kind); }, "'stats' or 'lse'.")
      .def_prop_ro(
          "seed", [](const Saved& self) { return self.rng_seed; }, "Of dropout.")
      .def_prop_ro(
          "offset", [](const Saved& self) { return self.rng_offset; }, "Of dropout.")
      .def_prop_ro("backend", &saved_backend,
                   "Which backend runs; None: what the policy says then.")
      .def_prop_ro(
          "max_error", [](const Saved& self) { return self.max_error; },
          "What the policy of the forward said, which holds for its backward; None: nothing.")
      .def_prop_ro("plan", &saved_plan,
                   "The plans of the forward and the backward; None without one.")
      .def("__reduce__", &reduce)
      .def("__repr__", [](const Saved& self) {
        const std::string backend = self.backend ? to_string(*self.backend) : "any";
        return "<regard.Saved: " + std::string(name_of(self.kind)) + ", backend " + backend +
               ", seed " + std::to_string(self.rng_seed) + ">";
      });
}

}  // namespace regard::python
