"""Times collectives by every algorithm of the engine, as docs/reference/collectives.md quotes them.

Each row is one collective of one size; each column is an algorithm, in microseconds. The fastest
one is in bold. Figures are the engine's, on a switch that all ranks hang on and whose ports the
messages of a rank share (fair-share).
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from llmsim._native import engine
from llmsim.cli.arguments import OneSentenceParser

RATE_BYTES_PER_S, LATENCY_PS = 450 * 10**9, 500_000
"""A port of NVLink 4, and half a microsecond on each of the two hops through the switch."""
KIND = engine.CollectiveKind
SIZES = {"4 KB": 4096, "64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24, "256 MB": 1 << 28}
TABLES = [
    ("all-reduce, 8 ranks", KIND.ALL_REDUCE, 8),
    ("all-reduce, 6 ranks", KIND.ALL_REDUCE, 6),
    ("all-gather, 8 ranks", KIND.ALL_GATHER, 8),
    ("all-to-all, 8 ranks", KIND.ALL_TO_ALL, 8),
]


def main() -> None:
    OneSentenceParser(description=__doc__).parse_args()
    words = [word for word in engine.algorithm_words() if not word.startswith("one")]
    for title, kind, ranks in TABLES:
        able = [word for word in words if engine.AlgorithmChoice.parse(word).can(kind)]
        print(f"| {title} | {' | '.join(able)} |\n|{' --- |' * (len(able) + 1)}")
        times = {word: _microseconds(kind, ranks, word) for word in able}
        for row, name in enumerate(SIZES):
            fastest = min(times[word][row] for word in able)
            cells = [_cell(times[word][row], fastest) for word in able]
            print(f"| {name} | {' | '.join(cells)} |")
        print()


def _microseconds(kind: "engine.CollectiveKind", ranks: int, word: str) -> list[float]:
    switch = engine.Topology.grid(
        [(engine.TopologyKind.SWITCH, ranks, RATE_BYTES_PER_S, LATENCY_PS, 0)]
    )
    durations = engine.ConcurrentDurations(
        switch,
        engine.NetworkKind.FAIR_SHARE,
        [list(range(ranks))],
        kind,
        engine.AlgorithmChoice.parse(word),
    )
    sizes = np.array(list(SIZES.values()), np.int64)
    return [ps / 1e6 for ps in durations.durations_ps(sizes).tolist()]


def _cell(time_us: float, fastest_us: float) -> str:
    text = f"{time_us:.1f}"
    return f"**{text}**" if time_us == fastest_us else text


if __name__ == "__main__":
    main()
