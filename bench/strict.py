"""`python -m bench.strict`: a ring all-reduce of 256 MiB among 1,024 NPUs by the installed
`astra-sim` under strict rules, beside the CPU seconds that ASTRA-sim was recorded with.

The smallest of nine whole processes. Another executable (`--executable`) gives the figures of
another version.
"""

import tempfile
from pathlib import Path

from bench.ring_case import executable_of, measure, write_case

NPUS, GB_PER_S, NUM_BYTES, RUNS = 1024, 100.0, 1 << 28, 9
RECORDED_S = {"congestion-unaware": 3.374, "congestion-aware": 4.486}
"""CPU seconds of ASTRA-sim (518bd51) for the same case."""


def main() -> None:
    """Prints one line per network."""
    executable = executable_of("bench.strict", __doc__)
    with tempfile.TemporaryDirectory() as folder:
        options = write_case(Path(folder), executable, [NPUS], GB_PER_S, NUM_BYTES)
        print(f"{'network':20}{'CPU s':>8}{'recorded s':>12}{'times':>7}")
        for network, recorded_s in RECORDED_S.items():
            command = [executable, *options, "--rules=strict", f"--network-backend={network}"]
            cpu_s = min(measure(command)[0] for _ in range(RUNS))
            print(
                f"{network:20}{cpu_s:8.3f}{recorded_s:12.3f}{recorded_s / cpu_s:7.0f}", flush=True
            )


if __name__ == "__main__":
    main()
