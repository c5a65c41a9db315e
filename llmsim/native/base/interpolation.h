// Cost tables over several axes, interpolated in integers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace llmsim {

inline constexpr int kWeightBits = 24;  // interpolation weights are multiples of 2^-24

// Where a coordinate lies on an axis: `upper` = 0 exactly on a point (or clamped below the first);
// above the last point the last segment is continued.
struct Place {
  std::int32_t lower = 0;
  std::int64_t weight = 0;              // of the upper neighbour, in 2^-24
  bool outside = false;                 // above the last point
  std::int64_t beyond_permille = 1000;  // of the last point, where outside
};

// A cell's time, and how it was obtained: the worst of the points that it is made of.
struct Cell {
  Ps ps = 0;
  Provenance provenance = Provenance::kInterpolated;
  std::int64_t beyond_permille = 1000;
};

// Ascending coordinates of one dimension.
class Axis {
 public:
  explicit Axis(std::vector<std::int64_t> points) : points_(std::move(points)) {}
  // The coordinate numerator / denominator, denominator > 0.
  Place locate(std::int64_t numerator, std::int64_t denominator = 1) const;
  std::size_t size() const { return points_.size(); }

 private:
  std::vector<std::int64_t> points_;
};

inline Ps blend(Ps low, Ps high, std::int64_t weight) {
  return low +
         static_cast<Ps>((static_cast<int128>(high - low) * weight + (1 << (kWeightBits - 1))) >>
                         kWeightBits);
}

// Row-major table over N axes; linear in each axis between points, never below zero.
template <std::size_t N>
class Grid {
 public:
  // `provenance`: one for each cell; empty: between measured points.
  Grid(std::array<Axis, N> axes, std::vector<Ps> ps, std::vector<std::uint8_t> provenance = {})
      : axes_(std::move(axes)), ps_(std::move(ps)), provenance_(std::move(provenance)) {
    std::size_t stride = 1;
    for (std::size_t i = N; i-- > 0;) {
      strides_[i] = stride;
      stride *= axes_[i].size();
    }
  }
  const Axis& axis(std::size_t i) const { return axes_[i]; }
  std::size_t size() const { return ps_.size(); }
  Ps at(const std::array<Place, N>& places) const {
    const Ps value = reduce<0>(places, 0);
    return value < 0 ? 0 : value;
  }
  Cell cell(const std::array<Place, N>& places) const {
    Cell cell{at(places), provenance_.empty() ? Provenance::kInterpolated : worst<0>(places, 0)};
    for (const Place& place : places) {
      if (place.weight != 0) cell.provenance = std::max(cell.provenance, Provenance::kInterpolated);
      if (!place.outside) continue;
      cell.provenance = std::max(cell.provenance, Provenance::kExtrapolated);
      cell.beyond_permille = std::max(cell.beyond_permille, place.beyond_permille);
    }
    return cell;
  }

 private:
  template <std::size_t D>
  Ps reduce(const std::array<Place, N>& places, std::size_t offset) const {
    if constexpr (D == N) {
      return ps_[offset];
    } else {
      const std::size_t here = offset + static_cast<std::size_t>(places[D].lower) * strides_[D];
      const Ps low = reduce<D + 1>(places, here);
      if (places[D].weight == 0) return low;
      return blend(low, reduce<D + 1>(places, here + strides_[D]), places[D].weight);
    }
  }

  template <std::size_t D>
  Provenance worst(const std::array<Place, N>& places, std::size_t offset) const {
    if constexpr (D == N) {
      return static_cast<Provenance>(provenance_[offset]);
    } else {
      const std::size_t here = offset + static_cast<std::size_t>(places[D].lower) * strides_[D];
      const Provenance low = worst<D + 1>(places, here);
      return places[D].weight == 0 ? low : std::max(low, worst<D + 1>(places, here + strides_[D]));
    }
  }

  std::array<Axis, N> axes_;
  std::array<std::size_t, N> strides_{};
  std::vector<Ps> ps_;
  std::vector<std::uint8_t> provenance_;
};

}  // namespace llmsim
