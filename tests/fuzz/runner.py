"""Runs damaged inputs through the readers and says what breaks the rule: return, or refuse in one
sentence, soon.
"""

import random
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fuzz.targets import TARGETS, Refused, Target

SECONDS = 10
"""That any input may take."""


class Hang(BaseException):
    """The reader runs on; no handler of errors may swallow it."""


def damaged(target: Target, seed: int) -> bytes:
    """Input number `seed` of a target: every seed always gives the same bytes."""
    rng = random.Random(f"{target.name} {seed}")
    return target.damage(rng, rng.choice(target.samples()))


def verdict(target: Target, folder: Path, data: bytes) -> str:
    """What is wrong with how a reader ends; "" when nothing is."""
    from llmsim.config.errors import LlmsimError

    try:
        with _limited(SECONDS), warnings.catch_warnings():
            warnings.simplefilter(
                "error", RuntimeWarning
            )  # it would be printed on the user's terminal
            target.read(folder, data)
    except Refused as refused:
        return _sentence_fault(refused.said.rstrip("\n").split("\n")[-1])
    except LlmsimError as error:
        if error.exit_code not in (2, 3):
            return f"exit code {error.exit_code}: {error}"
        return _sentence_fault(str(error), printed=False)
    except Hang:
        return f"still runs after {SECONDS} s"
    except Exception:
        return traceback.format_exc(limit=-6)
    return ""


def _sentence_fault(said: str, *, printed: bool = True) -> str:
    if not said.strip():
        return "an error without a sentence"
    if printed and len(said) > 5000:
        return f"a sentence of {len(said)} characters: {said[:200]!r}"
    bad = [character for character in said if ord(character) < 32 or 127 <= ord(character) < 160]
    if printed and bad:
        return f"control characters {sorted(set(bad))} in a sentence: {said[:200]!r}"
    return ""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def expire(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the inputs of one target, in memory where the machine has such a place."""
    shared_memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared_memory if shared_memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def targets(names: str) -> list[Target]:
    """The targets whose names begin with one of the comma-separated words; all for an
    empty text.
    """
    words = tuple(word for word in names.split(",") if word)
    return [target for name, target in TARGETS.items() if not words or name.startswith(words)]
