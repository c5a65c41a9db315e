"""The errors a user can meet; each carries the exit code that the command line ends with."""

import errno
from collections.abc import Iterable

from msgspec import Struct


class LlmsimError(Exception):
    """Base of every error that is shown to a user as one sentence; `exit_code` is the process's."""

    exit_code = 1


class InputError(LlmsimError):
    """A file, option or field is wrong: the sentence says what, its value, where, and what would
    have worked.

    `file`, `field` (a path such as `nodes[0].instances[0].tp_size`, or an option's name) and
    `value` name the culprit for programs; each is None where the error has none.
    """

    exit_code = 2

    def __init__(
        self,
        sentence: str = "",
        *,
        file: str | None = None,
        field: str | None = None,
        value: object = None,
    ) -> None:
        super().__init__(sentence)
        self.file, self.field, self.value = file, field, value


class UnknownKeyError(InputError):
    """A file has a key that no such file has."""


class NotYetError(InputError):
    """The input is valid, but asks for a capability that this version does not run; never ignored
    silently.
    """


class BackendFailed(InputError):
    """A program that times the steps of a run died, hung or printed no times."""


class PluginRefused(InputError):
    """A file names a Python plug-in, whose code runs only where the user allows it."""


class InfeasibleError(LlmsimError):
    """The deployment does not fit or can never make progress; the sentence shows the arithmetic."""

    exit_code = 3


class WiderSplit(Struct, frozen=True):
    """Sizes of an instance that would hold a model which its present ones do not hold."""

    tp: int
    pp: int
    ep: int | None
    """None: as it is."""
    present_tp: int
    present_pp: int

    @property
    def devices(self) -> int:
        """Devices of the instance, beside those of prefill context parallelism."""
        return self.tp * self.pp

    def worded(self, tp: str, pp: str, ep: str) -> list[str]:
        """The sizes that change, each with the name that the reader knows it by."""
        words = [f"{tp} {self.tp}"] if self.tp != self.present_tp else []
        words += [f"{pp} {self.pp}"] if self.pp != self.present_pp else []
        return [*words, *([] if self.ep is None else [f"{ep} {self.ep}"])]

    @property
    def in_keys(self) -> str:
        """The sizes under the keys of a cluster file."""
        words = self.worded("tp_size", "pp_size", "ep_size")
        return f"{', '.join(words)} on {self.devices} devices"


class DoesNotFit(InfeasibleError):
    """A model needs more memory than its devices have: what would hold it, and the arithmetic.

    `least_gib` is the memory of a device that would do; `wider` is set where a wider split would,
    `utilization` where a larger gpu_memory_utilization would.
    """

    def __init__(
        self,
        problem: str,
        arithmetic: str,
        least_gib: float,
        wider: WiderSplit | None = None,
        utilization: float | None = None,
    ) -> None:
        self.problem, self.arithmetic = problem, arithmetic
        self.least_gib, self.wider, self.utilization = least_gib, wider, utilization
        super().__init__(self.with_remedy("" if wider is None else wider.in_keys))

    def __reduce__(self) -> tuple[object, ...]:
        """An error that crosses processes is made again of its parts, not of its sentence."""
        parts = (self.problem, self.arithmetic, self.least_gib, self.wider, self.utilization)
        return type(self), parts

    def with_remedy(self, split: str) -> str:
        """The sentence with the wider split in the words of the reader; empty: none would do."""
        share = "" if self.utilization is None else f"gpu_memory_utilization {self.utilization:g}"
        larger = f"a device of at least {self.least_gib:.2f} GiB"
        remedies = ", ".join(remedy for remedy in (share, split) if remedy)
        either = f"{remedies} or " if remedies else ""
        return f"{self.problem}; it would fit with {either}{larger}: {self.arithmetic}"

    def at(self, location: str) -> "DoesNotFit":
        """The same error with the place where the group stands."""
        problem = f"{location}: {self.problem}"
        return DoesNotFit(problem, self.arithmetic, self.least_gib, self.wider, self.utilization)


class FailedRuns(LlmsimError):
    """Runs of a search were killed or failed twice, so that their points have no answer."""


class InvariantError(LlmsimError):
    """An invariant (docs/reference/invariants.md) does not hold: a defect of the simulator, not of
    the input.
    """

    exit_code = 4


class InterruptedRun(LlmsimError):
    """The user stopped the run; what had finished was written."""

    exit_code = 130


PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""Errors of the machine, not of the input: the same run may succeed later."""


def may_pass(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is the machine's, so that the same run may succeed
    later.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or (isinstance(seen, OSError) and seen.errno in PASSING):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


SHORTEST_BEGINNING = 3
"""Letters from which a word may be the beginning of one name."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean "x"?)` for the closest of `known`, or an empty string when
    nothing is close.

    A name that the word begins comes first, where it is the only one, as it is what was cut short.
    """
    import difflib  # only errors look for neighbours

    names = list(known)
    begun = [name for name in names if len(word) >= SHORTEST_BEGINNING and name.startswith(word)]
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if len(begun) == 1:
        matches = begun
    return f' (did you mean "{matches[0]}"?)' if matches else ""
