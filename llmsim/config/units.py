"""Turns the units of the cluster file into bytes, bytes per second and picoseconds, each exactly
and once.

| key of the file | unit there | here |
| --- | --- | --- |
| mem_size | GB of 2^30 bytes | bytes |
| mem_bw, link_bw, read_bw, write_bw, bandwidth_gb_per_s | GB/s of 1e9 bytes | bytes/s |
| mem_latency, link_latency, read_latency, write_latency, api_latency_ns, host_gap_ns | ns | ps |
| host_sequence_ns, latency_ns | ns | ps |
| standby_duration | s | ps |
| powers | W | microwatts |
| energy_per_bit, memory_energy_per_bit | pJ/bit | attojoules/bit |

The strict rules of the engine read `link_bw` as 2^30 bytes/s, as upstream ASTRA-sim does; that
conversion is theirs.
"""

from fractions import Fraction
from functools import lru_cache

from llmsim.core import PS_PER_NS, PS_PER_S

BYTES_PER_GIB = 1 << 30
BYTES_PER_GB = 10**9


@lru_cache(maxsize=1024)  # a cluster of a hundred instances has few different numbers
def _scaled(value: float, factor: int) -> int:
    """`value * factor` to the nearest integer, from the decimal that the file shows, not from its
    binary rounding.
    """
    return round(Fraction(repr(value)) * factor)


def gib_to_bytes(size_gib: float) -> int:
    """Bytes of a capacity in units of 2^30 bytes."""
    return _scaled(size_gib, BYTES_PER_GIB)


def gb_per_s_to_bytes_per_s(bandwidth_gb_per_s: float) -> int:
    """Bytes per second of a bandwidth in units of 1e9 bytes per second."""
    return _scaled(bandwidth_gb_per_s, BYTES_PER_GB)


def ns_to_ps(time_ns: float) -> int:
    """Picoseconds of a time in nanoseconds."""
    return _scaled(time_ns, PS_PER_NS)


def s_to_ps(time_s: float) -> int:
    """Picoseconds of a time in seconds."""
    return _scaled(time_s, PS_PER_S)


def w_to_uw(power_w: float) -> int:
    """Microwatts of a power in watts."""
    return _scaled(power_w, 10**6)


def pj_to_aj(energy_pj: float) -> int:
    """Attojoules of an energy in picojoules."""
    return _scaled(energy_pj, 10**6)
