"""Starts the engine's own server, with what makes its devices and its clock ours."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.in_engine.plugin import SETTINGS
from llmsim.scheduling.conformance.engine_python import last_words, linked_environment

READY_S = 900
"""Seconds that the server has to start, on a machine with other work, too."""
END_S = 20
"""Seconds that it has to end, before it is killed."""
_LOOK_S = 0.2
_METADATA = "Metadata-Version: 2.1\nName: llmsim-emulation\nVersion: 1\n"


class Server:
    """A server that runs: where it listens, and whether it still does."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    async def ready(self) -> None:
        """Returns when it answers; NoProgressError where it ends before, or takes too long."""
        for _ in range(int(READY_S / _LOOK_S)):
            if self.process.poll() is not None:
                raise NoProgressError(f"the server ended before it was ready: {self.last_words()}")
            if await self._answers():
                return
            await asyncio.sleep(_LOOK_S)
        raise NoProgressError(f"the server was not ready after {READY_S} s: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what it has said."""
        return last_words(self.log.read_text(encoding="utf-8", errors="replace"))

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
    command: list[str], environment: dict[str, str], port: int, log: Path
) -> Iterator[Server]:
    """A server that listens on that port; what it says goes to `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield Server(process, port, log)
        finally:
            _end(process)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the server and every process that it has started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
