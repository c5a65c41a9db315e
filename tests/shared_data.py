"""Locates the optional validation data beside the checkout and skips, with a reason, where it is
absent.
"""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def shared(relative: str) -> Path:
    """Path of a validation file or folder; skips the calling test when this machine does not have
    it.
    """
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"validation data {relative} is not on this machine")
    return path
