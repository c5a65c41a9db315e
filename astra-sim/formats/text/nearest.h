// The known word that is nearest to a mistyped one, for error messages and notes.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace astra_sim::config {

// ` (did you mean "x"?)`, or nothing where no word is near.
std::string nearest(std::string_view word, std::span<const std::string_view> known);

}  // namespace astra_sim::config
