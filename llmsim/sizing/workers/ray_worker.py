"""A worker that is an actor of Ray, on this machine or on those of a Ray cluster.

The answers are those of a process: an actor keeps what it compiled and answers one task after the
other.
"""

import os
import sys
from typing import Any

from llmsim.config.errors import InputError
from llmsim.lowering import LoweringOptions
from llmsim.sizing.workers.worker import function_of


class RayWorker:
    """One actor of the Ray that `connect` has found or started."""

    def __init__(self, options: LoweringOptions) -> None:
        self._ray = connect()
        remote = self._ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        self._actor = remote.remote(options, os.getcwd(), list(sys.path))

    def ask(self, function: str, task: Any) -> tuple[str, Any]:
        """The answer to one task; EOFError where the actor is gone."""
        try:
            kind, value = self._ray.get(self._actor.ask.remote(function, task))
        except self._ray.exceptions.RayActorError as error:
            raise EOFError(str(error)) from None
        return kind, value

    def end(self) -> int:
        """Ends the actor; Ray does not say how an actor ended by itself."""
        self._ray.kill(self._actor)
        return 1


class _Actor:
    """What runs in Ray's process."""

    def __init__(self, options: LoweringOptions, folder: str, path: list[str]) -> None:
        sys.path[:] = [*path, *(one for one in sys.path if one not in path)]
        os.chdir(folder)  # relative paths of files start where the search was called
        from llmsim.sizing.measure import Bench

        self._bench = Bench(options)

    def ask(self, function: str, task: Any) -> tuple[str, Any]:
        """The answer, or the error of the task."""
        try:
            return "answer", function_of(function)(self._bench, task)
        except Exception as error:
            return "error", error


def connect(jobs: int = 0) -> Any:
    """The module `ray`, connected to `RAY_ADDRESS`, or to a Ray that starts on this machine for so
    many actors (0: one per processor).

    The thread that calls this first has to live on: a Ray that it starts ends with it. Raises
    InputError where Ray is not installed or does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError(
            '--executor ray needs ray: pip install "llmsim[ray]", or leave the option out',
            field="--executor",
            value="ray",
        ) from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        own = {} if address else {"num_cpus": jobs or None, "include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="CRITICAL", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"--executor ray: Ray at {address or 'this machine'} does not answer ({error}); "
                "set RAY_ADDRESS, or leave the option out",
                field="--executor",
                value="ray",
            ) from None
    return ray


def actors(jobs: int) -> int:
    """How many actors run at once: as many as are asked for (0: any number) and Ray has processors
    for; more would wait for ever.
    """
    processors = int(connect(jobs).cluster_resources().get("CPU", 1))
    return max(1, min(jobs or processors, processors))
