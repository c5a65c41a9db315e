"""Starts the engine's own server, with what makes its devices and its clock ours."""

import asyncio
import json
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.in_engine.plugin import SETTINGS
from llmsim.emulation.processes import end_tree
from llmsim.scheduling.conformance.engine_python import last_words, linked_environment

READY_S = 900
"""Seconds that the server has to start, on a machine with other work, too."""
END_S = 20
"""Seconds that it has to end, before it is killed."""
_LOOK_S = 0.2
_METADATA = "Metadata-Version: 2.1\nName: llmsim-emulation\nVersion: 1\n"
_USAGE_ERROR = re.compile(r"(?:[\w.]+ )?[\w.]+: error: (.*)")
"""What the parser of a server's command line ends with."""
_REFUSALS = re.compile(r"(?:[\w.]+\.)?(?:ValidationError|ValueError|NotImplementedError): ?(?=\S)")
"""What a server's checks of its configuration end with."""
_ENDS_OF_REASONS = (" [type=", "For further information")
"""What follows a reason and says nothing new."""
_REASON_LINES, _LONGEST_REASON = 3, 300
"""Lines of such an error, and characters of a reason, that are repeated."""


class Server:
    """A server that runs: where it listens, and whether it still does."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        port: int,
        log: Path,
        extra: Sequence[str] = (),
    ) -> None:
        """`extra`: the options that its user has added."""
        self.process, self.port, self.log = process, port, log
        self._extra = extra

    async def ready(self) -> None:
        """Returns when it answers; NoProgressError where it ends before, or takes too long, and
        InputError where it refuses the options that were added.
        """
        for _ in range(int(READY_S / _LOOK_S)):
            if self.process.poll() is not None:
                self._check_extra()
                reason = why_refused(self._said()) or self.last_words()
                raise NoProgressError(f"the server ended before it was ready: {reason}")
            if await self._answers():
                return
            await asyncio.sleep(_LOOK_S)
        raise NoProgressError(f"the server was not ready after {READY_S} s: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what it has said."""
        return last_words(self._said())

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _check_extra(self) -> None:
        said = why_refused(self._said())
        if self._extra and said:
            raise InputError(
                f'--engine-args "{shlex.join(self._extra)}": the server refuses the options: '
                f"{said}",
                field="--engine-args",
                value=shlex.join(self._extra),
            )

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()


def why_refused(log: str) -> str:
    """The reason of a server that refuses an option, on one line; empty: it gives none."""
    lines = [line.split(") ", 1)[-1] if line.startswith("(") else line for line in log.split("\n")]
    for number in reversed(range(len(lines))):
        by_parser = _USAGE_ERROR.match(lines[number])
        if by_parser is not None:
            return _shortened(" ".join([by_parser[1], *lines[number + 1 : number + _REASON_LINES]]))
        if _REFUSALS.match(lines[number]):
            return _shortened(" ".join(lines[number : number + _REASON_LINES]))
    return ""


def _shortened(reason: str) -> str:
    for end in _ENDS_OF_REASONS:
        reason = reason.split(end)[0]
    reason = " ".join(reason.split()).rstrip(".")
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def engine_environment(
    settings: Mapping[str, object], folder: Path, entry_points: str
) -> dict[str, str]:
    """The environment of an engine's processes, which find these entry points; `folder` is made,
    with what they import.
    """
    folder.mkdir()
    environment = linked_environment(folder)
    plugin = folder / "llmsim_emulation-1.dist-info"
    plugin.mkdir()
    (plugin / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    (plugin / "METADATA").write_text(_METADATA, encoding="utf-8")
    return environment | {
        SETTINGS: json.dumps(settings),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def engine_server(
    command: list[str], extra: list[str], environment: dict[str, str], port: int, log: Path
) -> Iterator[Server]:
    """A server that listens on that port, with the options `extra` beside the command's own; what
    it says goes to `log`.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *extra], env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield Server(process, port, log, extra)
        finally:
            end_tree(process, END_S)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
