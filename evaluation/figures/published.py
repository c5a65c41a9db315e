"""Numbers printed in papers and notes, typed as facts, each with its source."""

from dataclasses import dataclass

PAPER = "LLMServingSim 2.0, ISPASS 2026"


@dataclass(frozen=True)
class Means:
    """Published means of a real run: output tok/s, ms, ms."""

    throughput: float
    ttft_ms: float
    tpot_ms: float


H100_REAL = {
    "SD": Means(1833.89, 61.5, 26.72),
    "MD": Means(1858.47, 50.33, 22.665),
    "PDD": Means(1800.95, 128.91, 28.12),
    "SM": Means(2134.34, 37.94, 20.53),
}
"""vLLM on H100, four devices per instance (artifact of the paper, figure 8): Llama-3.1-70B on one instance, on two,
prefill and decode apart; Mixtral-8x7B."""
H100_PEER_ERRORS = {
    "SD": (-1.2, -6.7, 1.5),
    "MD": (-1.6, -6.5, 1.6),
    "PDD": (-1.2, 0.8, -1.8),
    "SM": (3.8, -10.3, 0.5),
}
"""LLMServingSim 2.0 with its own H100 profile against the same runs, percent: throughput, TTFT, TPOT."""
SERIES_ERROR = {"A6000": 5.14, "H100": 3.29, "TPU-v6e": 3.95}
"""Paper, sections VII.A and VII.C: its average error of the throughput per second, percent."""
ENERGY_ERROR = 1.34
"""Paper, VII.A: its average error of the total energy of figure 6, percent."""
MEMORY_ERROR = {"single": 0.93, "multi": 0.41}
"""Paper, VII.A: its average errors of memory use and hit rate in figure 7, percent."""
PIM_SPEEDUP, PIM_ENERGY = 1.43, -14.8
"""Paper, VII.C: decode throughput with PIM over without, and the change of J per token, percent."""
ARTIFACT_MINUTES = 150
"""Paper, appendix B: time to regenerate figures 5 to 10 with its own simulator."""
