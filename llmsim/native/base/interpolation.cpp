#include "base/interpolation.h"

#include <algorithm>

namespace llmsim {

namespace {

// In `Int`, which holds the products of points and denominator.
template <typename Int>
Place locate_in(const std::vector<std::int64_t>& points, std::int64_t numerator,
                std::int64_t denominator) {
  const auto above = std::upper_bound(
      points.begin(), points.end(), numerator, [denominator](std::int64_t x, std::int64_t point) {
        return static_cast<Int>(x) < static_cast<Int>(point) * denominator;
      });
  if (above == points.begin() || points.size() == 1)
    return {0, 0, above != points.begin() && points.size() > 1};
  Place place;
  place.lower = static_cast<std::int32_t>(above - points.begin()) - 1;
  const auto last = static_cast<std::int32_t>(points.size()) - 1;
  if (place.lower == last) {
    const int128 beyond =
        static_cast<int128>(numerator) - static_cast<int128>(points.back()) * denominator;
    if (beyond == 0) return {last, 0, false};
    place.lower = last - 1;
    place.outside = true;
    const int128 last_point = std::max<int128>(1, static_cast<int128>(points.back()) * denominator);
    place.beyond_permille = static_cast<std::int64_t>(
        std::min<int128>(static_cast<int128>(numerator) * 1000 / last_point, INT64_MAX));
  }
  const std::int64_t low = points[place.lower], high = points[place.lower + 1];
  const Int offset = static_cast<Int>(numerator) - static_cast<Int>(low) * denominator;
  const Int width = static_cast<Int>(high - low) * denominator;
  place.weight = static_cast<std::int64_t>((offset << kWeightBits) / width);
  return place;
}

}  // namespace

Place Axis::locate(std::int64_t numerator, std::int64_t denominator) const {
  constexpr std::int64_t kSmall = std::int64_t{1}
                                  << (62 - kWeightBits);  // also after a shift by the weight's bits
  const bool small =
      numerator <= kSmall && points_.front() >= 0 && points_.back() <= kSmall / denominator;
  return small ? locate_in<std::int64_t>(points_, numerator, denominator)
               : locate_in<int128>(points_, numerator, denominator);
}

}  // namespace llmsim
