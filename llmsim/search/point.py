"""What a search asks a worker for, and how that ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmsim.config.files.input_files import InputFile
from llmsim.search.space import Bound
from llmsim.search.successive_halving.ceilings import Ceilings

FUNCTION = "llmsim.cli.run.point:ended"
"""Answers `Asked` with `Ended`; it reads a command line, so the search names it only."""
CAPACITY_FUNCTION = "llmsim.cli.run.point:capacity"
"""Answers `AskedCapacity` with the `Ended` of the run at the highest rate."""
LEAST_STEP_FUNCTION = "llmsim.cli.run.point:least_step"
"""Answers `Asked` with an `Ended` whose summary has LEAST_STEP alone."""
LEAST_STEP = "least_step_ps"
"""The least time between two tokens of a request, ps; 0 where none is known."""
VERDICTS = ("bad_input", "does_not_fit")
"""How a run ends that says of its point that it cannot run."""
STOPPED = "stopped"
"""How a run ends of which a figure is above its ceiling; its summary has the ceiling alone."""
USAGE = "--help"
"""In the sentence of a command line that cannot be read, for which a run reports nothing."""


@dataclass(frozen=True)
class Asked:
    """One run: the words of its command line but for the cluster file, whose text is here."""

    cluster: str
    name: str
    """The cluster file's name in messages; relative paths start beside it."""
    words: tuple[str, ...]
    figures: tuple[str, ...]
    """Names of the figures that are wanted."""
    allow_plugins: bool = False
    ceilings: Ceilings = field(default_factory=dict)
    """The run may stop as soon as a figure is certain to be above its ceiling."""


@dataclass(frozen=True)
class AskedCapacity:
    """The highest rate of requests at which a run is within bounds."""

    asked: Asked
    low: float
    high: float
    precision: float
    bounds: Mapping[str, Bound]
    where: str
    """The search file, for messages."""


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, its summary, what it said, and what it read."""

    code: int
    summary: Mapping[str, Any] | None
    said: str
    """The sentence of its error, without the program's name."""
    how: str
    """In the words of `llmsim.cli.run.inputs_report`; empty where no run was begun."""
    code_sha256: str = ""
    files: tuple[InputFile, ...] = ()
    capacity_rps: float | None = None
    """The highest rate that was found, 0 where even the lowest is too much."""

    @property
    def verdict(self) -> bool:
        """Whether the point cannot run; everything else but an answer may go well another time."""
        if not self.how:
            return self.code == 2 and USAGE in self.said
        return self.code in (2, 3) and self.how in VERDICTS

    @property
    def failure(self) -> str:
        """Why it is neither an answer nor a verdict."""
        return f"its run ended with code {self.code}: {self.said}"


def died(code: int) -> str:
    """Why a run has no answer whose process ended with a code (negative: by a signal)."""
    if code == -9:
        return "its run was killed (signal 9), as a machine does that is out of memory"
    if code < 0:
        return f"its run was ended by signal {-code}"
    return f"its run ended without a complete answer (exit code {code})"
