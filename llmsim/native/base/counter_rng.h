// Random numbers for routers that do not depend on the order in which they are sampled.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llmsim {

// splitmix64 as a counter-based generator: the number depends on (seed, counter) alone.
inline std::uint64_t draw(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t x = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Uniform in [0, n); n > 0.
inline std::size_t draw_below(std::uint64_t seed, std::uint64_t counter, std::size_t n) {
  return static_cast<std::size_t>((static_cast<unsigned __int128>(draw(seed, counter)) * n) >> 64);
}

}  // namespace llmsim
