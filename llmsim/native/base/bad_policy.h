// The error of a policy that users write.
#pragma once

#include <stdexcept>

namespace llmsim {

// A policy answered something that it cannot have meant; the text begins with its kind.
class BadPolicy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace llmsim
