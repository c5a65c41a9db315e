"""Numbers printed in papers and notes, typed as facts, each with its source."""

from dataclasses import dataclass

PAPER = "LLMServingSim 2.0, ISPASS 2026"
ARTIFACT = "the artifact (github.com/casys-kaist/LLMServingSim)"
PROFILED = ("--disable-term", "host_gap")
"""The artifact's profiles were timed beside an engine and hold its host time."""
SYNCHRONOUS = ("--no-async-scheduling",)
"""The engines of the recordings are older than asynchronous scheduling as a default: the logs that
the artifact keeps are of vLLM 0.11.1 and 0.13.0rc2, those of H100 and TPU have no version.
"""
EAGER = (*SYNCHRONOUS, "--enforce-eager", *PROFILED)
"""The engine of the recordings on A6000: the server logs that the artifact keeps (figures 6 and 7,
raw_data) are of vLLM 0.11.1 and 0.13.0rc2 with enforce_eager, before asynchronous scheduling was a
default. It keeps none of H100.
"""
NO_PREFIXES = ("--no-enable-prefix-caching",)
"""The artifact's figure 5 has prefix caching in SD+PC only, and its figures 6, 8 and 9 nowhere."""


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
"""vLLM on H100, four devices per instance (artifact of the paper, figure 8): Llama-3.1-70B on one
instance, on two, prefill and decode apart; Mixtral-8x7B.
"""
H100_PEER_ERRORS = {
    "SD": (-1.2, -6.7, 1.5),
    "MD": (-1.6, -6.5, 1.6),
    "PDD": (-1.2, 0.8, -1.8),
    "SM": (3.8, -10.3, 0.5),
}
"""LLMServingSim 2.0 with its own H100 profile against the same runs, percent: throughput, TTFT,
TPOT.
"""
OTHERS = {
    "SD": {
        "Vidur": (1761.92, 79.6839, 29.8899),
        "APEX": (1833.95, 50.921, 30.683),
        "TokenSim": (1276.07, 319.608, 191.507),
    },
    "MD": {
        "Vidur": (1765.55, 59.1469, 25.2357),
        "APEX": (1899.38, 37.454, 22.42),
        "TokenSim": (1387.55, 167.62, 152.468),
    },
    "PDD": {"TokenSim": (1339.97, 315.377, 125.503)},
    "SM": {"APEX": (2439.23, 17.819, 14.242)},
}
"""Other simulators on the same runs, output tok/s, mean TTFT and TPOT in ms (artifact, figure 8,
reference).
"""
SIMULATION_S = {
    "SD": {
        "LLMServingSim": 182164.2,
        "LLMServingSim 2.0": 302.25,
        "Vidur": 485.3,
        "APEX": 8.389,
        "TokenSim": 2.52,
    },
    "MD": {"LLMServingSim 2.0": 633.2, "Vidur": 495.1, "APEX": 7.151, "TokenSim": 2.811},
    "PDD": {"LLMServingSim 2.0": 478.2, "TokenSim": 2.771},
    "SM": {"LLMServingSim 2.0": 316.9, "APEX": 27.06},
}
"""Seconds of simulation on the authors' machine (artifact, figure 8, reference and parsed)."""
TPU_REAL = {
    "output_throughput": 1899.51,
    "mean_ttft_ms": 57.29,
    "mean_tpot_ms": 29.98,
    "mean_itl_ms": 29.49,
}
TPU_PEER = {
    "output_throughput": 1895.37,
    "mean_ttft_ms": 47.68,
    "mean_tpot_ms": 29.91,
    "mean_itl_ms": 29.64,
}
"""Llama-3.1-8B on one v6e chip, measured and simulated (artifact, figure 9, reference and parsed).
"""
POWER_REAL_W = {"TP1": 66_793 / 137, "TP2": 68_184 / 129}
POWER_PEER_W = {"TP1": 67_590 / 137, "TP2": 69_206 / 129}
"""Mean power of the A6000 server over the three pulses: sum of the samples, one a second, over
their number, and the energy that the artifact's own simulator gave for the same windows (figure 6,
reference and parsed).
"""


@dataclass(frozen=True)
class Memory:
    """What a server held at the end of figure 7: MiB, and prefix hits in percent of the prompt
    tokens.
    """

    held_mib: float
    hit_percent: float


WEIGHTS_MIB = 14.9889 * 1024
"""Of Llama-3.1-8B on the device, by vLLM's own log (figure 7, raw_data)."""
MEMORY_REAL = {
    "single": [Memory(32110.425 - WEIGHTS_MIB, 25.7)],
    "multi": [
        Memory(24461.608 - WEIGHTS_MIB, 10.63269554),
        Memory(24395.601 - WEIGHTS_MIB, 13.65506921),
    ],
}
"""Device memory without weights, last line of the artifact's measured series (figure 7, reference).
"""
POOL_REAL = Memory(13440, 9.312118095)
"""The pool in host memory (LMCache) that two instances share, same source."""
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
