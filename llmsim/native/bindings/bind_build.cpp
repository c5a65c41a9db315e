// What the module was built from, so that a checkout whose sources have changed since is told
// (llmsim/native_build.py).
#include "bindings/bindings.h"
#include "sources_sha256.h"

namespace llmsim {

void bind_build(nb::module_& m) { m.attr("sources_sha256") = kSourcesSha256; }

}  // namespace llmsim
