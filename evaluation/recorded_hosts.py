"""What the recorded runs say of their hosts: times of a step, a sequence, a launch, and experts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from recorded_runs import HostTimes, Run, Served, lowered
from scipy.stats import theilslopes

from llmsim.lowering.host.cuda_graphs import launches, layers_of_experts

HIDDEN = 1.2
"""Launches behind a decode that took less than so many times its time may have waited for it."""
FEWEST_STEPS = 5
"""A class of steps with fewer in either run has no row, and gives no constant."""
MANY_SEQUENCES = 128
"""Decodes of more tell whether the host or the device takes longer."""
NEARLY_AS_MANY = 4
"""Sequences by which neighbouring steps may differ to be compared."""
HOST_BOUND = 0.5
"""Steps that last so much longer for each ms that the host takes their tokens wait for the host."""


@dataclass(frozen=True)
class Launching:
    """Steps of one kind of graphs, with so many launches, and what they took the host."""

    graphs: str
    launches: int
    experts: int
    """Layers of experts that no graph has."""
    steps: int
    ms: float
    """The median; of full graphs the least, since the others may have waited for devices."""
    hidden: bool
    """Whether the host may have waited for the step before, so that its own time is not seen."""


def launchings(runs: Sequence[Run], served: Served) -> Iterator[Launching]:
    """Of one model's runs, by kind of graphs."""
    own = [run for run in runs if run.served is served]
    real = pd.concat([run.launches for run in own])
    decode_ms = pd.concat([run.real_steps for run in own]).ms.median()
    stage = lowered(served).operators
    without, piecewise, full = launches(stage)
    experts = layers_of_experts(stage)
    slow_decodes = real.ms[real.graphs == "piecewise"].median() < HIDDEN * decode_ms
    for graphs, number in (("full", full), ("piecewise", piecewise), ("none", without)):
        ms = real.ms[real.graphs == graphs]
        if len(ms) < FEWEST_STEPS:
            continue
        yield Launching(
            graphs,
            number,
            experts if graphs == "none" else 0,
            len(ms),
            ms.min() if graphs == "full" else ms.median(),
            hidden=slow_decodes and graphs != "none",
        )


@dataclass(frozen=True)
class ManySequences:
    """Decodes of more than `MANY_SEQUENCES`, and what decided how long they took."""

    steps: int
    sequences: float
    """Medians."""
    ms: float
    growth: float
    """How much longer a step lasted than the one before for each ms more that the host took tokens,
    by the median of all slopes (Theil and Sen): nothing where the device takes longer.
    """

    @property
    def host_bound(self) -> bool:
        return self.growth > HOST_BOUND


def many_sequences(runs: Sequence[Run], served: Served) -> ManySequences | None:
    """Of one model's runs; None: it had too few such steps."""
    updates = [run.updates for run in runs if run.served is served]
    of_loads = [each[each.sequences > MANY_SEQUENCES] for each in updates]
    steps = pd.concat(of_loads)
    if len(steps) < 2 * FEWEST_STEPS:
        return None
    changes = pd.concat([each.diff().dropna() for each in of_loads])
    neighbours = changes[changes.sequences.abs() <= NEARLY_AS_MANY]
    growth = float(theilslopes(neighbours.ms, neighbours.update_ms).slope)
    return ManySequences(len(steps), steps.sequences.median(), steps.ms.median(), growth)


def host_times(
    runs: Sequence[Run], hosts: Sequence[str], without: Served | None = None
) -> HostTimes:
    """Times of a step, of each launch and of each layer of experts, with the least squares of
    relative errors over the kinds of graphs of all models on these hosts but one; and of each
    sequence, by the decodes that waited for the host.

    In whole 0.1 ms, us and 10 us; none of a kind that no such model has.
    """
    on_hosts = dict.fromkeys(run.served for run in runs if run.served.host in hosts)
    models = [each for each in on_hosts if each is not without]
    kinds = [each for served in models for each in launchings(runs, served) if not each.hidden]
    step_ms, launch_ms, experts_ms = least_squares_ms(kinds)
    many = [many_sequences(runs, served) for served in models]
    sequence_ms = time_of_a_sequence_ms(many, step_ms + launch_ms)
    return {
        "prepare_ns": round(10 * step_ms) * 100_000,
        "prepare_sequence_ns": round(1e3 * sequence_ms) * 1000,
        "launch_ns": round(1e3 * launch_ms) * 1000,
        "fused_moe_ns": round(1e2 * experts_ms) * 10_000,
    }


def least_squares_ms(kinds: Sequence[Launching]) -> list[float]:
    """Of a step, of each launch and of each layer of experts; 0 for what no kind has."""
    relative = np.array([[1 / k.ms, k.launches / k.ms, k.experts / k.ms] for k in kinds])
    known: Any = relative.any(axis=0)
    times_ms = np.zeros(len(known))
    times_ms[known] = np.linalg.lstsq(relative[:, known], np.ones(len(kinds)))[0]
    return [float(ms) for ms in times_ms]


def time_of_a_sequence_ms(many: Sequence[ManySequences | None], others_ms: float) -> float:
    """What decodes that waited for the host took for each sequence beyond the other times; 0 where
    none did.
    """
    waited = [each for each in many if each is not None and each.host_bound]
    each_ms = [(one.ms - others_ms) / one.sequences for one in waited]
    return statistics.median(each_ms) if each_ms else 0.0


def others_host_times(runs: Sequence[Run], served: Served) -> HostTimes:
    """Times for a model by the recordings on the other hosts."""
    hosts = dict.fromkeys(run.served.host for run in runs if run.served.host != served.host)
    return host_times(runs, tuple(hosts))


def at_speed_of(times: HostTimes, other: HostTimes) -> HostTimes:
    """The times of a sequence, in whole us, and of experts, in whole 10 us, on a host that launches
    in another time.
    """
    speed = other["launch_ns"] / times["launch_ns"]
    return {
        name: round(times[name] * speed / unit) * unit
        for name, unit in (("prepare_sequence_ns", 1000), ("fused_moe_ns", 10_000))
    }
