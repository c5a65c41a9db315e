"""What the recorded card took for an operation and for a byte, by the mean power of its runs.

`python evaluation/recorded_power.py` derives `switching_fj_per_flop` and `traffic_fj_per_byte` of
the data sheet again. Runs of dense models give them: how many experts random weights touched is an
expectation, and its bytes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from recorded_runs import FOLDER, HARDWARE, LOADS, SERVED, Served, lowered, meta_of, rows
from scipy.optimize import nnls

from llmsim.lowering.adjust.sustained_clock import Limited
from llmsim.model import load_hardware

DENSE = tuple(each for each in SERVED if not each.alike and "a3b" not in each.folder)


class Energies(NamedTuple):
    """Of an operation of matrices in bf16, and of a byte of memory, above the idle power."""

    switching_fj_per_flop: int
    traffic_fj_per_byte: int


class MeanPower(NamedTuple):
    """Of a run: what NVML read, and the parts that the data sheet's energies give."""

    read_w: float
    idle_w: float
    switching_w: float
    traffic_w: float

    @property
    def drawn_w(self) -> float:
        """All parts together."""
        return self.idle_w + self.switching_w + self.traffic_w


def main() -> int:
    energies = fitted_energies()
    print(f"switching_fj_per_flop {energies.switching_fj_per_flop}")
    print(f"traffic_fj_per_byte {energies.traffic_fj_per_byte}")
    return 0


def fitted_energies() -> Energies:
    """The energies with the least squares of relative errors over the mean powers of dense runs."""
    card, runs = card_power(), list(dense_runs())
    read = np.array([run.read_w for run in runs])
    parts = np.array([(run.switching_w, run.traffic_w) for run in runs])
    idle = np.array([run.idle_w for run in runs])
    (switching, traffic), _ = nnls(parts / read[:, None], (read - idle) / read)
    return Energies(
        round(card.switching_fj_per_flop * switching), round(card.traffic_fj_per_byte * traffic)
    )


def card_power() -> Limited:
    """What the card's data sheet says."""
    card = Limited.of(load_hardware(HARDWARE))
    assert card is not None, "the recorded card has a data sheet with these numbers"
    return card


def dense_runs() -> Iterator[MeanPower]:
    """Of the runs that give the energies."""
    for served in DENSE:
        for load in LOADS:
            if (FOLDER / served.folder / load).is_dir():
                yield mean_power(served, load)


def drawn_w(served: Served, load: str) -> float | None:
    """The mean power of a run by the data sheet; None: what it moved is not known."""
    return mean_power(served, load).drawn_w if served in DENSE else None


def mean_power(served: Served, load: str) -> MeanPower:
    """Of a recorded run, from the batches of its steps."""
    program = lowered(served).program
    switching_pj = traffic_pj = 0
    steps = list(rows(FOLDER / served.folder / load / "steps.jsonl.gz"))
    for step in steps:
        switching, traffic, _ = program.device_work([tuple(item) for item in step["batch"]])
        switching_pj += switching
        traffic_pj += traffic
    joules_w = 1e-12 / (steps[-1]["end"] - steps[0]["start"])
    read_w = float(meta_of(served, load)["facts"]["power"]["mean_w"])
    return MeanPower(read_w, card_power().idle_w, switching_pj * joules_w, traffic_pj * joules_w)


if __name__ == "__main__":
    raise SystemExit(main())
