// Chooses the group that serves a request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "group.h"

namespace llmsim {

// Called once per arrival; sees queue lengths, never output lengths.
class Router {
 public:
  virtual ~Router() = default;
  // An index into `candidates` (not empty): groups that serve the request's model, in order of their index.
  virtual std::size_t route(RequestId request, std::span<Group* const> candidates) = 0;
};

// name: "RR" (round robin per model), "RAND" (uniform, seeded, independent of call order), "LOAD" (least loaded).
std::unique_ptr<Router> make_router(const std::string& name, std::uint64_t seed, std::size_t num_models);

}  // namespace llmsim
