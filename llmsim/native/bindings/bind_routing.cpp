// Routers for Python: the list of the native ones, and the two ways to choose one.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/python/python_router.h"
#include "router/keep_sessions.h"
#include "router/registry.h"

using namespace nanobind::literals;

namespace llmsim {

namespace {

void bind_router_makers(nb::module_& m) {
  nb::class_<RouterMaker>(m, "RouterMaker", "Makes the router of a simulation.");
  m.def(
      "native_router",
      [](const std::string& name, std::uint64_t seed, const OptionValues& options,
         const In<std::int32_t>& session) {
        return RouterMaker([=, session = to_vector(session)](RouterContext context) {
          if (!session.empty() && session.size() != context.input_tokens.size())
            throw std::invalid_argument("session numbers and requests differ in number");
          context.seed = seed;
          context.session = session;
          return make_router(name, context, options);
        });
      },
      "name"_a, "seed"_a, "options"_a, "session"_a,
      "A native router. session: number of each row's session from 0, or -1; empty when no row has "
      "one.");
  m.def(
      "keep_sessions",
      [](const RouterMaker& inner, const In<std::int32_t>& session) {
        return RouterMaker([inner, session = to_vector(session)](RouterContext context) {
          if (session.size() != context.input_tokens.size())
            throw std::invalid_argument("session numbers and requests differ in number");
          return keep_sessions(inner(std::move(context)), session);
        });
      },
      "inner"_a, "session"_a,
      "Another router, but later calls of a session go to the group of its first call. session: "
      "number of each row's session from 0, or -1 for rows without this.");
  m.def(
      "python_router",
      [](nb::object route, nb::object session_names, nb::object model_names) {
        return RouterMaker([route = share(std::move(route)),
                            session_names = share(std::move(session_names)),
                            model_names = share(std::move(model_names))](RouterContext context) {
          const nb::gil_scoped_acquire lock;
          return std::make_unique<PythonRouter>(*route, std::move(context), *session_names,
                                                *model_names);
        });
      },
      "route"_a, "session_names"_a.none(), "model_names"_a,
      "A function route(request, groups) -> index (llmsim.routing.base.Router). session_names: by "
      "row, or None; "
      "model_names: of the deployment.");
}

}  // namespace

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
  bind_router_makers(m);
}

}  // namespace llmsim
