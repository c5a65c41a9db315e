// Python bindings of the engine, for the caller's own nanobind module.
#pragma once

#include <nanobind/nanobind.h>

namespace astra_sim::python {

// Adds every class, function and error of the engine to `module` (call it once, with a submodule
// such as `engine`).
void bind_engine(nanobind::module_& module);

// Its parts, in the order that bind_engine calls them.
void bind_errors(nanobind::module_& module);
void bind_topology(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_graph(nanobind::module_& module);
void bind_runtime(nanobind::module_& module);
void bind_isolated(nanobind::module_& module);
void bind_folded(nanobind::module_& module);

}  // namespace astra_sim::python
