// Sessions that stay where they are, whatever router chooses for everybody else.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "router/router.h"

namespace llmsim {

// `session` is the number of each row's session from 0, or -1 for rows that `inner` routes. A later
// call of a session goes to the group of its first call while that one is a candidate; `inner` is
// not asked for it, and chooses for the others.
std::unique_ptr<Router> keep_sessions(std::unique_ptr<Router> inner,
                                      std::vector<std::int32_t> session);

}  // namespace llmsim
