"""Writes networks as ASTRA-sim's network files, so that every reader finds the intended rates.

A stock ASTRA-sim takes a GB of the file for 2^30 bytes, and reads four keys alone. The rates are in
these units, and a fifth key says so to the default rules of the command `astra-sim`, whose GB has
10^9 bytes without it.
"""

import json
from collections.abc import Sequence

BYTES_PER_GIB = 1 << 30
Dimension = tuple[int, int, int]
"""Devices, bytes/s in one direction, latency in ps."""


def network_file(dimensions: Sequence[Dimension], shape: str) -> str:
    """The text of a network whose dimensions all have a shape: Ring, FullyConnected, Switch."""
    columns = {
        "topology": [shape] * len(dimensions),
        "npus_count": [size for size, _, _ in dimensions],
        "bandwidth": [rate / BYTES_PER_GIB for _, rate, _ in dimensions],
        "latency": [ps / 1000 for _, _, ps in dimensions],
    }
    decimal = ", ".join(f"{rate / 1e9:g}" for _, rate, _ in dimensions)
    lines = [f"{key}: {json.dumps(value)}" for key, value in columns.items()]
    lines.append(f"bandwidth_unit: GiB/s  # {decimal} GB/s of 10^9 bytes")
    return "\n".join(lines) + "\n"
