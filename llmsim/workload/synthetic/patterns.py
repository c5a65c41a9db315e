"""Arrivals whose rate changes with time: Poisson processes on a warped clock."""

import math

import numpy as np
from msgspec import Struct
from numpy.random import Generator

from llmsim.core import Int64
from llmsim.workload.synthetic.distributions import NS_PER_S, Float64


class Diurnal(Struct, frozen=True):
    """Poisson of rate r(t) = rate (1 - amplitude cos(2 pi t / period)): lowest at the trace's zero,
    highest half a period later, `rate` on average over whole periods. amplitude is above 0, at most
    1.
    """

    rate_per_s: float
    period_s: float
    amplitude: float

    def times_ns(self, random: Generator, n: int) -> Int64:
        # R(t) = rate (t - a sin(w t) / w) counts the arrivals expected by t; the k-th comes where
        # R(t) is a unit Poisson's k-th time. t - R(t) / rate is at most a / w, so bisection starts
        # that close.
        expected = np.cumsum(random.standard_exponential(n)) / self.rate_per_s
        pulse = 2 * math.pi / self.period_s
        low, high = expected - self.amplitude / pulse, expected + self.amplitude / pulse
        for _ in range(60):
            middle = (low + high) / 2
            early = middle - self.amplitude * np.sin(pulse * middle) / pulse < expected
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return _rounded_ns(np.maximum((low + high) / 2, 0))

    @property
    def text(self) -> str:
        return (
            f"rate={self.rate_per_s!r},"
            f"arrivals=diurnal:period_s={self.period_s!r}:amplitude={self.amplitude!r}"
        )


class Spikes(Struct, frozen=True):
    """Poisson of `rate`, and of `factor` times that in the last `length_s` of every `every_s`
    seconds; on average rate (1 + (factor - 1) length_s / every_s).
    """

    rate_per_s: float
    every_s: float
    length_s: float
    factor: float

    def times_ns(self, random: Generator, n: int) -> Int64:
        expected = np.cumsum(random.standard_exponential(n)) / self.rate_per_s
        calm_s = self.every_s - self.length_s
        of_period = calm_s + self.length_s * self.factor
        period, rest = np.divmod(expected, of_period)
        since = np.where(rest < calm_s, rest, calm_s + (rest - calm_s) / self.factor)
        return _rounded_ns(period * self.every_s + since)

    @property
    def text(self) -> str:
        spikes = f"every_s={self.every_s!r}:length_s={self.length_s!r}:factor={self.factor!r}"
        return f"rate={self.rate_per_s!r},arrivals=spike:{spikes}"


def _rounded_ns(times_s: Float64) -> Int64:
    whole: Int64 = np.rint(times_s * NS_PER_S).astype(np.int64)
    return whole
