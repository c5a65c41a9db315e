"""Ends a process with the one that has started it, however that ends."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """The kernel sends this process SIGTERM when `parent` ends; nothing where it is no child of it.

    What this process has started in turn is its own affair.
    """
    if os.getppid() != parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
