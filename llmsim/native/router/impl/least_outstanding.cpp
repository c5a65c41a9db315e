// LOR: least outstanding requests, as in Vidur's `lor` and the request-count balancing of HTTP
// proxies.
#include "router/impl/least_outstanding.h"

#include "router/registry.h"

namespace llmsim {

namespace {

class LeastOutstanding final : public Router {
 public:
  std::size_t route(RequestId, Ps, std::span<Group* const> candidates) override {
    return fewest_outstanding(candidates);
  }
};

}  // namespace

RouterKind least_outstanding() {
  return {"LOR",
          "least outstanding requests, waiting or running; the lowest index wins a tie",
          {},
          [](const RouterContext&, const OptionValues&) {
            return std::unique_ptr<Router>(std::make_unique<LeastOutstanding>());
          }};
}

}  // namespace llmsim
