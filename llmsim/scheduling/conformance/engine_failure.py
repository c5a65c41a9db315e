"""An error inside an engine's scheduler, which ends a case that then cannot be compared."""

import traceback
from pathlib import Path

from llmsim.config.errors import LlmsimError


class EngineFailureError(LlmsimError):
    """The engine's scheduler has ended with an error; its message says which."""


def words_of(error: BaseException) -> str:
    """The error's kind and message, and where in the engine it was raised, on one line."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return said
    return f"{said} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
