// The bindings as a module of their own, for developing the engine alone.
#include "python/bindings.h"

NB_MODULE(astra_engine_py, module) { astra_sim::python::bind_engine(module); }
