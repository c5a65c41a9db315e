"""`python -m bench.torus`: an all-reduce of 64 MiB on a 3-D torus of 65,536 NPUs, by the installed
`astra-sim` under default rules; CPU seconds and peak memory of each network.

Another executable (`--executable`) gives the figures of another version.
"""

import tempfile
from pathlib import Path

from bench.ring_case import executable_of, measure, write_case

SIZES = (64, 32, 32)
NETWORKS = ("congestion-unaware", "congestion-aware", "fair-share")
GB_PER_S, NUM_BYTES = 50.0, 64 << 20


def main() -> None:
    """Prints one line per network."""
    executable = executable_of("bench.torus", __doc__)
    with tempfile.TemporaryDirectory() as folder:
        options = write_case(Path(folder), executable, SIZES, GB_PER_S, NUM_BYTES)
        print(f"{'network':20}{'CPU s':>8}{'peak MB':>9}")
        for network in NETWORKS:
            cpu, peak = measure([executable, *options, f"--network-backend={network}"])
            print(f"{network:20}{cpu:8.2f}{peak:9.0f}", flush=True)


if __name__ == "__main__":
    main()
