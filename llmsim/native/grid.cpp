#include "grid.h"

#include <algorithm>

namespace llmsim {

Place Axis::locate(std::int64_t numerator, std::int64_t denominator) const {
  const auto above =
      std::upper_bound(points_.begin(), points_.end(), numerator, [denominator](std::int64_t x, std::int64_t point) {
        return static_cast<int128>(x) < static_cast<int128>(point) * denominator;
      });
  if (above == points_.begin() || points_.size() == 1) return {0, 0, above != points_.begin() && points_.size() > 1};
  Place place;
  place.lower = static_cast<std::int32_t>(above - points_.begin()) - 1;
  const auto last = static_cast<std::int32_t>(points_.size()) - 1;
  if (place.lower == last) {
    const int128 beyond = static_cast<int128>(numerator) - static_cast<int128>(points_.back()) * denominator;
    if (beyond == 0) return {last, 0, false};
    place.lower = last - 1;
    place.outside = true;
    const int128 last_point = std::max<int128>(1, static_cast<int128>(points_.back()) * denominator);
    place.beyond_permille =
        static_cast<std::int64_t>(std::min<int128>(static_cast<int128>(numerator) * 1000 / last_point, INT64_MAX));
  }
  const std::int64_t low = points_[place.lower], high = points_[place.lower + 1];
  const int128 offset = static_cast<int128>(numerator) - static_cast<int128>(low) * denominator;
  const int128 width = static_cast<int128>(high - low) * denominator;
  place.weight = static_cast<std::int64_t>((offset << kWeightBits) / width);
  return place;
}

}  // namespace llmsim
