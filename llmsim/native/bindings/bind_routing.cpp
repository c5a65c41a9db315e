// Routers for Python: the list of the native ones, and the two ways to choose one.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/python_router.h"
#include "router/registry.h"

using namespace nanobind::literals;

namespace llmsim {

void bind_routing(nb::module_& m) {
  nb::class_<RouterOption>(m, "RouterOption")
      .def_ro("name", &RouterOption::name)
      .def_ro("default", &RouterOption::fallback)
      .def_ro("low", &RouterOption::low)
      .def_ro("high", &RouterOption::high)
      .def_ro("meaning", &RouterOption::meaning);
  nb::class_<RouterKind>(m, "RouterKind",
                         "A native router: its name, what it does, and its options.")
      .def_ro("name", &RouterKind::name)
      .def_ro("summary", &RouterKind::summary)
      .def_ro("options", &RouterKind::options);
  m.def("router_kinds", &router_kinds, "All native routers.");
  bind_python_router(m);
}

namespace {

RouterContext context_of(const Simulation& simulation, std::uint64_t seed, bool decode_side) {
  RouterContext context = simulation.router_context();
  context.seed = seed;
  context.decode_side = decode_side;
  return context;
}

void install(Simulation& simulation, std::unique_ptr<Router> router, bool decode_side) {
  if (decode_side) {
    simulation.set_decode_router(std::move(router));
  } else {
    simulation.set_router(std::move(router));
  }
}

}  // namespace

void bind_set_router(nb::class_<Simulation>& simulation) {
  simulation
      .def(
          "set_router",
          [](Simulation& s, const std::string& name, std::uint64_t seed,
             const OptionValues& options, const In<std::int32_t>& session, bool decode_side) {
            RouterContext context = context_of(s, seed, decode_side);
            context.session = to_vector(session);
            if (!context.session.empty() && context.session.size() != context.input_tokens.size())
              throw std::invalid_argument("session numbers and requests differ in number");
            install(s, make_router(name, context, options), decode_side);
          },
          "name"_a, "seed"_a, "options"_a, "session"_a, "decode_side"_a = false,
          "A native router. session: number of each row's session from 0, or -1; empty when nobody "
          "has one.")
      .def(
          "set_router",
          [](Simulation& s, const std::string& name, std::uint64_t seed, std::size_t,
             bool decode_side) {
            install(s, make_router(name, context_of(s, seed, decode_side), {}), decode_side);
          },
          "name"_a, "seed"_a = 0, "num_models"_a = 1, "decode_side"_a = false,
          "A native router with its default options.")
      .def(
          "set_python_router",
          [](Simulation& s, nb::object route, nb::object session_names, nb::object model_names,
             bool decode_side) {
            install(
                s,
                std::make_unique<PythonRouter>(std::move(route), context_of(s, 0, decode_side),
                                               std::move(session_names), std::move(model_names)),
                decode_side);
          },
          "route"_a, "session_names"_a.none(), "model_names"_a, "decode_side"_a = false,
          "A function route(request, groups) -> index (llmsim.routing.base.Router). session_names: "
          "by row, or None; "
          "model_names: of the deployment.");
}

}  // namespace llmsim
