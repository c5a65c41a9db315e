"""Fits a link's bandwidth and latency together, as all requests of a log tell them apart.

A collective takes bytes / bandwidth + latencies, so many pairs do nearly alike: they lie on a line
(in 1 / bandwidth and latency) from a link without latency to one that only has latency. Simulations
are rough in detail, since a step may meet a request or miss it, and a search of one error stops in
the first dent of that line. Each request's own time says more: requests whose steps are large wait
for bytes, others for latency. Times are nearly linear in both. So planes through the times of
several links, one for each request, average the roughness out, and the pair follows from all planes
by the least sum of absolute errors. Steps of the same kind from there settle it where a log is
smooth.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.validation.fit.golden_section import Axis, minimise
from llmsim.validation.logs.recording import Finding

Floats = NDArray[np.float64]
BANDWIDTH, LATENCY = "link_bandwidth_gb_per_s", "link_latency_ns"
LINK = (BANDWIDTH, LATENCY)
"""Fitted together, as one property of the machine: alone, each would stand for both."""
SHARE = Axis("share", 0.0, 1.0, 5e-3, logarithmic=False, coarse=9)
ROUNDS = 4
"""Of planes, each around the link of the one before."""
STAR = ((0, 0), (0.3, 0), (-0.3, 0), (0, 0.3), (0, -0.3), (0.2, -0.2), (-0.2, 0.2))
"""Links of a round, beside the one in their middle, in shares of a typical collective."""
NEAR = 0.75
"""Links of earlier rounds that a plane goes through, too."""
MOST_STEPS = 6
"""After the planes; four are enough where a log has no noise."""
STEP = 0.1
"""Share of a typical collective by which slopes of steps are taken."""
REWEIGHTED = 8
"""Times that requests with large errors lose weight: the least sum of absolute errors."""
SMALLEST_ERROR = 1e-5
"""Relative; errors below count alike."""
SETTLED = 1e-3
"""Share of a typical collective that a last step moves less than."""


MAY_DIFFER = 0.25
"""By which links that explain a log may differ, of the larger value, if it is to tell what the link
of the machine is.
"""
SMALL_LATENCY_NS = 1000.0
"""Latencies that differ by less are alike."""


class Ends(Struct, frozen=True):
    """The ends of the line: bandwidth of a link without latency, and latency of a fast one."""

    bandwidth: float
    latency: float
    fastest: float

    def at(self, share: float) -> dict[str, float]:
        """A link of whose typical collective so much is latency."""
        inverse = (1 - share) / self.bandwidth + share / self.fastest
        return {BANDWIDTH: 1 / inverse, LATENCY: share * self.latency}

    def coordinates(self, link: Mapping[str, float]) -> Floats:
        """What bytes and latencies take, each beside a typical collective."""
        return np.array([self.bandwidth / link[BANDWIDTH], link[LATENCY] / self.latency])

    def link(self, coordinates: Floats) -> dict[str, float]:
        """The link at coordinates, which are taken as 0 below, and no faster than the fastest."""
        inverse, latency = coordinates
        bandwidth = self.bandwidth / max(inverse, self.bandwidth / self.fastest)
        return {BANDWIDTH: float(bandwidth), LATENCY: float(max(latency, 0.0) * self.latency)}


class LinkFit(Struct, frozen=True, eq=False):
    """What a link is fitted by: the error of all requests, which is minimised, and each one's."""

    error: Callable[[Mapping[str, float]], float]
    errors: Callable[[Mapping[str, float]], Floats]
    """ln(real / simulated) of every time of every request."""
    bandwidth: Axis
    latency: Axis

    def found(self) -> dict[str, float]:
        """The link that the planes lead to, or the step from there with the least error."""
        ends = self._ends()
        share = minimise(lambda value: self.error(ends.at(value)), SHARE).value
        middle = self._by_planes(ends, ends.coordinates(ends.at(share)))
        best = ends.link(middle)
        for link in self._steps(ends, middle):
            best = min(best, link, key=self.error)
        return best

    def _by_planes(self, ends: Ends, middle: Floats) -> Floats:
        """Coordinates where planes through the times of links around them have the least error."""
        tried: dict[tuple[float, ...], Floats] = {}
        for _ in range(ROUNDS):
            for offset in STAR:
                at = np.maximum(middle + np.array(offset), 0.0)
                tried.setdefault(tuple(at.tolist()), self._beside(ends.link(at)))
            near = [at for at in tried if np.abs(np.array(at) - middle).max() <= NEAR]
            offsets = np.array([np.array(at) - middle for at in near])
            plane = np.column_stack([np.ones(len(near)), offsets])
            times = np.stack([tried[at] for at in near])
            level, *slopes = np.linalg.lstsq(plane, times, rcond=None)[0]
            middle = middle + least_absolute(np.stack(slopes, axis=1), 1.0 - level, -middle)
        return middle

    def _beside(self, link: Mapping[str, float]) -> Floats:
        """Simulated beside real times of all requests."""
        return np.exp(-self.errors(link))

    def _ends(self) -> Ends:
        fastest = self.bandwidth.largest
        bandwidth = minimise(
            lambda value: self.error({BANDWIDTH: value, LATENCY: 0.0}), self.bandwidth
        ).value
        latency = minimise(
            lambda value: self.error({BANDWIDTH: fastest, LATENCY: value}), self.latency
        ).value
        return Ends(bandwidth, max(latency, self.latency.tolerance), fastest)

    def _steps(self, ends: Ends, at: Floats) -> list[dict[str, float]]:
        """The links that steps go through, from a first one."""
        found: list[dict[str, float]] = []
        for _ in range(MOST_STEPS):
            here = self._beside(ends.link(at))
            slopes = np.stack([self._slope(ends, at, here, way) for way in range(2)], axis=1)
            move = least_absolute(slopes, 1.0 - here, -at)
            at = at + move
            found.append(ends.link(at))
            if np.abs(move).max() < SETTLED:
                break
        return found

    def _slope(self, ends: Ends, at: Floats, here: Floats, way: int) -> Floats:
        """By how much each simulated time grows with one coordinate."""
        moved = at.copy()
        moved[way] += STEP
        return np.asarray((self._beside(ends.link(moved)) - here) / STEP)


def least_absolute(slopes: Floats, errors: Floats, least: Floats) -> Floats:
    """The move of two coordinates that leaves the least sum of absolute errors; neither goes below
    its least.
    """
    weights = np.ones(len(errors))
    move = np.zeros(2)
    for _ in range(REWEIGHTED):
        move = _bounded(slopes, errors, weights, least)
        left = np.abs(errors - slopes @ move)
        weights = 1 / np.maximum(left, SMALLEST_ERROR)
    return move


def _bounded(slopes: Floats, errors: Floats, weights: Floats, least: Floats) -> Floats:
    """Weighted least squares; where a coordinate would go below its least, it stays there."""
    free = _solved(slopes, errors, weights)
    if (free >= least).all():
        return free
    held = [_with_one_held(slopes, errors, weights, least, way) for way in range(2)]
    return min(held, key=lambda move: float((weights * (errors - slopes @ move) ** 2).sum()))


def _with_one_held(
    slopes: Floats, errors: Floats, weights: Floats, least: Floats, way: int
) -> Floats:
    move, other = least.copy(), 1 - way
    rest = errors - slopes[:, way] * least[way]
    found = _solved(slopes[:, [other]], rest, weights)[0]
    move[other] = max(found, least[other])
    return move


def _solved(slopes: Floats, errors: Floats, weights: Floats) -> Floats:
    root = np.sqrt(weights)
    solution = np.linalg.lstsq(slopes * root[:, None], errors * root, rcond=None)[0]
    return np.asarray(solution, np.float64)


def undetermined_link(
    link: Mapping[str, float], rivals: Iterable[Mapping[str, float]]
) -> tuple[Finding, ...]:
    """Says where other links explain the log as well, or its other half better."""
    if not {*LINK} <= link.keys():
        return ()
    others = [one for one in rivals if not _alike_links(link, one)]
    if not others:
        return ()
    farthest = max(others, key=lambda one: abs(np.log(one[BANDWIDTH] / link[BANDWIDTH])))
    sentence = (
        f"the log does not determine the link: {_in_words(farthest)} explain it like "
        f"{_in_words(link)}; use the constants for this model and load alone"
    )
    return (Finding("link", False, sentence),)


def _in_words(link: Mapping[str, float]) -> str:
    return f"{link[BANDWIDTH]:.4g} GB/s and {link[LATENCY] / 1e3:.3g} us"


def _alike_links(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return _alike(one, other, BANDWIDTH, 0.0) and _alike(one, other, LATENCY, SMALL_LATENCY_NS)


def _alike(one: Mapping[str, float], other: Mapping[str, float], name: str, least: float) -> bool:
    apart, largest = abs(one[name] - other[name]), max(one[name], other[name])
    return apart <= max(MAY_DIFFER * largest, least)
