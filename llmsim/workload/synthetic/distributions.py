"""Lengths (tokens) and arrival times that synthetic workloads draw from; each says exactly what its
mean means.
"""

import math
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.workload.limits import MAX_TOKENS

Float64 = NDArray[np.float64]
NS_PER_S = 1_000_000_000
MAX_ZIPF_VALUES = 10_000_000


class Lengths(Protocol):
    """A distribution of integers >= 0 or 1 (tokens, calls, milliseconds)."""

    def draw(self, random: Generator, n: int) -> Int64:
        """n values, shape (n,)."""

    @property
    def text(self) -> str:
        """The specification that parses back to this distribution."""


class LogNormal(Struct, frozen=True):
    """exp(N(mu, sigma^2)) with mu = ln(mean) - sigma^2 / 2, so that `mean` is the arithmetic mean
    *before* rounding to the nearest integer and before values outside [minimum, maximum] are set to
    the limit (which moves the mean).

    A coefficient of variation cv corresponds to sigma = sqrt(ln(1 + cv^2)).
    """

    mean: float
    sigma: float
    minimum: int = 1
    maximum: int = MAX_TOKENS

    @classmethod
    def with_cv(
        cls, mean: float, cv: float, minimum: int = 1, maximum: int = MAX_TOKENS
    ) -> "LogNormal":
        return cls(mean, math.sqrt(math.log1p(cv * cv)), minimum, maximum)

    def draw(self, random: Generator, n: int) -> Int64:
        values = random.standard_normal(n)
        values *= self.sigma
        values += math.log(self.mean) - self.sigma**2 / 2
        np.exp(values, out=values)
        np.clip(np.rint(values, out=values), self.minimum, self.maximum, out=values)
        return values.astype(np.int64)

    @property
    def text(self) -> str:
        limits = f":min={self.minimum}" if self.minimum != 1 else ""
        limits += f":max={self.maximum}" if self.maximum != MAX_TOKENS else ""
        return f"lognormal:{self.mean!r}:sigma={self.sigma!r}{limits}"


class Zipf(Struct, frozen=True):
    """P(v) proportional to v^-exponent for minimum <= v <= maximum; the mean is what follows, sum(v
    P(v)): `mean`.
    """

    exponent: float
    minimum: int
    maximum: int

    def draw(self, random: Generator, n: int) -> Int64:
        cumulative = np.cumsum(self._weights())
        ranks = np.searchsorted(cumulative, random.random(n) * cumulative[-1], side="right")
        values: Int64 = ranks.astype(np.int64) + self.minimum
        return values

    @property
    def mean(self) -> float:
        weights = self._weights()
        return float((weights * np.arange(self.minimum, self.maximum + 1)).sum() / weights.sum())

    def _weights(self) -> Float64:
        return np.arange(self.minimum, self.maximum + 1, dtype=np.float64) ** -self.exponent

    @property
    def text(self) -> str:
        return f"zipf:{self.exponent!r}:min={self.minimum}:max={self.maximum}"


class Pareto(Struct, frozen=True):
    """A heavy tail: P(more than v) = (minimum / v)^alpha, values beyond `maximum` set to it, then
    rounded down; without that limit the mean is minimum * alpha / (alpha - 1), for alpha above 1.
    """

    alpha: float
    minimum: int
    maximum: int

    def draw(self, random: Generator, n: int) -> Int64:
        with np.errstate(over="ignore"):  # what overflows is set to the maximum
            values = self.minimum * (1.0 - random.random(n)) ** (-1.0 / self.alpha)
        return np.minimum(values, self.maximum).astype(np.int64)

    @property
    def text(self) -> str:
        return f"pareto:{self.alpha!r}:min={self.minimum}:max={self.maximum}"


class Uniform(Struct, frozen=True):
    """Every integer from minimum to maximum, both included, equally likely; mean (minimum +
    maximum) / 2.
    """

    minimum: int
    maximum: int

    def draw(self, random: Generator, n: int) -> Int64:
        return random.integers(self.minimum, self.maximum, size=n, dtype=np.int64, endpoint=True)

    @property
    def text(self) -> str:
        return f"uniform:min={self.minimum}:max={self.maximum}"


class Exponential(Struct, frozen=True):
    """Memoryless, of this mean before rounding to the nearest integer; values below `minimum` are
    set to it.
    """

    mean: float
    minimum: int = 0

    def draw(self, random: Generator, n: int) -> Int64:
        values = np.rint(random.standard_exponential(n) * self.mean)
        return np.clip(values, self.minimum, MAX_TOKENS).astype(np.int64)

    @property
    def text(self) -> str:
        return f"exponential:{self.mean!r}"


class Fixed(Struct, frozen=True):
    """Always `value`."""

    value: int

    def draw(self, random: Generator, n: int) -> Int64:
        return np.full(n, self.value, dtype=np.int64)

    @property
    def text(self) -> str:
        return f"fixed:{self.value}"


UNLIMITED = "inf"
"""The rate of requests that come at once, as `vllm bench serve --request-rate` has it."""


class Arrivals(Protocol):
    """When requests come; `times_ns` rises and starts at or after 0."""

    def times_ns(self, random: Generator, n: int) -> Int64:
        """Arrival of each of n requests, ns, shape (n,)."""

    @property
    def text(self) -> str:
        """The part of a specification that parses back to this process."""


class Poisson(Struct, frozen=True):
    """Independent exponential gaps of mean 1/rate, none of them clipped; the first arrival is one
    gap after 0.
    """

    rate_per_s: float

    def times_ns(self, random: Generator, n: int) -> Int64:
        return _times_of(random.standard_exponential(n), self.rate_per_s)

    @property
    def text(self) -> str:
        return f"rate={self.rate_per_s!r},arrivals=poisson"


class Gamma(Struct, frozen=True):
    """Independent gamma gaps of mean 1/rate and coefficient of variation cv (1 is Poisson, above it
    burstier): shape cv^-2; the first arrival is one gap after 0.
    """

    rate_per_s: float
    cv: float

    def times_ns(self, random: Generator, n: int) -> Int64:
        shape = self.cv**-2
        return _times_of(random.standard_gamma(shape, n) / shape, self.rate_per_s)

    @property
    def text(self) -> str:
        return f"rate={self.rate_per_s!r},arrivals=gamma:cv={self.cv!r}"


class FixedInterval(Struct, frozen=True):
    """Request k arrives at k/rate, the first at 0."""

    rate_per_s: float

    def times_ns(self, random: Generator, n: int) -> Int64:
        return _rounded(np.arange(n) * (NS_PER_S / self.rate_per_s))

    @property
    def text(self) -> str:
        return f"rate={self.rate_per_s!r},arrivals=fixed"


class AtOnce(Struct, frozen=True):
    """All requests arrive at 0."""

    def times_ns(self, random: Generator, n: int) -> Int64:
        return np.zeros(n, dtype=np.int64)

    @property
    def text(self) -> str:
        return f"rate={UNLIMITED}"


class Bursts(Struct, frozen=True):
    """`size` requests at once, every `every_s` seconds, the first at 0."""

    size: int
    every_s: float

    def times_ns(self, random: Generator, n: int) -> Int64:
        return _rounded((np.arange(n) // self.size) * (self.every_s * NS_PER_S))

    @property
    def text(self) -> str:
        return f"arrivals=burst:size={self.size}:every_s={self.every_s!r}"


def _times_of(unit_gaps: Float64, rate_per_s: float) -> Int64:
    return _rounded(np.cumsum(unit_gaps) * (NS_PER_S / rate_per_s))


def _rounded(times_ns: NDArray[Any]) -> Int64:
    whole: Int64 = np.rint(times_ns).astype(np.int64)
    return whole
