"""The errors a user can meet; each carries the exit code that the command line ends with."""

import difflib
from collections.abc import Iterable


class LlmsimError(Exception):
    """Base of every error that is shown to a user as one sentence; `exit_code` is the process's."""

    exit_code = 1


class InputError(LlmsimError):
    """A file, option or field is wrong: the sentence says what, its value, where, and what would have worked."""

    exit_code = 2


class NotYetError(InputError):
    """The input is valid, but asks for a capability that this version does not run; never ignored silently."""


class InfeasibleError(LlmsimError):
    """The deployment does not fit or can never make progress; the sentence shows the arithmetic."""

    exit_code = 3


class InvariantError(LlmsimError):
    """One of the numbered invariants (docs/invariants.md) does not hold: a defect of the simulator, not the input."""

    exit_code = 4


class InterruptedRun(LlmsimError):
    """The user stopped the run; what had finished was written."""

    exit_code = 130


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean "x"?)` for the closest of `known`, or an empty string when nothing is close."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{matches[0]}"?)' if matches else ""
