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
    _ask_for(signal.SIGTERM)


def die_with_own() -> None:
    """The kernel kills this process when the one that has started it ends."""
    parent = os.getppid()
    _ask_for(signal.SIGKILL)
    if os.getppid() != parent:  # it has ended meanwhile
        os.kill(os.getpid(), signal.SIGKILL)


def _ask_for(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
