"""Notes which functions of the tree, and which basic blocks of its native module, ran in this
process.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import threading
import uuid
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Reached = tuple[set[tuple[str, int]], set[int]]
"""Functions (file, first line) and offsets into the native module's code."""

_python: set[tuple[str, int]] = set()
_seen: set[CodeType] = set()
_blocks: Any = None


def start(tree: str) -> None:
    """From now on notes what runs; at the end of the process writes what nobody collected under
    LLMSIM_REACHED.
    """
    prefix = tree + os.sep

    def called(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code in _seen:
            return
        _seen.add(code)
        if code.co_filename.startswith(prefix):
            _python.add((code.co_filename[len(prefix) :], code.co_firstlineno))

    sys.settrace(called)
    threading.settrace(called)
    leave = os._exit

    def leave_with_notes(status: int) -> None:
        _write()
        leave(status)

    os._exit = leave_with_notes  # type: ignore[assignment]
    atexit.register(_write)


def collect() -> Reached:
    """What ran since the last call."""
    found = (set(_python), _native_blocks())
    _python.clear()
    _seen.clear()
    return found


def _native_blocks() -> set[int]:
    """Offsets of the blocks that ran; none while the module is not loaded or was built without the
    probe.
    """
    global _blocks
    module = sys.modules.get("llmsim._native")
    if module is None:
        return set()
    import numpy as np

    if _blocks is None:
        library = ctypes.CDLL(module.__file__)
        try:
            size = ctypes.c_size_t.in_dll(library, "llmsim_reached_size").value
            _blocks = np.frombuffer(
                (ctypes.c_ubyte * size).in_dll(library, "llmsim_reached"), dtype=np.uint8
            )
        except ValueError:
            _blocks = np.zeros(0, dtype=np.uint8)
    found = set(np.flatnonzero(_blocks).tolist())
    _blocks[:] = 0
    return found


def _write() -> None:
    python, native = collect()
    if python or native:
        path = Path(os.environ["LLMSIM_REACHED"]) / f"{os.getpid()}-{uuid.uuid4().hex}.json"
        path.write_text(json.dumps([sorted(python), sorted(native)]))
