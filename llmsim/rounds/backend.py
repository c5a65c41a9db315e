"""Programs that take ASTRA-sim's options and time the traces of one step."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmsim.config.errors import InputError
from llmsim.config.files import input_files

FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles")
"""ASTRA-sim's line for an NPU; a cycle is 1 ns."""
HANGS_S = 600
"""A step takes a stock binary well below a second."""
LAST_WORDS = 300
PS_PER_CYCLE = 1000
LONGEST_PS = 2**62
"""What the clock of a run can hold."""


class ProgramFailed(Exception):
    """What a program did instead of timing a step, and what it printed."""

    def __init__(self, what: str, said: str) -> None:
        super().__init__(what)
        self._said = said

    def sentence(self, name: str, step: int) -> str:
        """For the user, with the program's last words."""
        words = " ".join(self._said.split())[-LAST_WORDS:]
        last = f'; its last words: "{words}"' if words else ""
        return f"--network-backend {name}: the program {self} at step {step}{last}"


@dataclass(frozen=True)
class Backend:
    """A program that times exported step graphs."""

    name: str
    """As the user gave it."""
    command: tuple[str, ...]
    identity: str
    """Of the binary and its rules: times of another one are not its own."""

    def ends_ps(self, folder: Path, ranks: int) -> list[int]:
        """When each rank of the traces in a folder is done; ProgramFailed where it does not say."""
        code, said = self._run(folder)
        ends = {int(npu): int(cycles) for npu, cycles in FINISHED.findall(said)}
        missing = [rank for rank in range(ranks) if rank not in ends]
        if code != 0:
            raise ProgramFailed(f"ended with exit code {code}", said)
        if missing:
            raise ProgramFailed(f"has no line of the end of NPU {missing[0]}", said)
        found = [ends[rank] * PS_PER_CYCLE for rank in range(ranks)]
        if max(found) > LONGEST_PS:
            raise ProgramFailed(f"says that a step takes {max(ends.values())} cycles", said)
        return found

    def _run(self, folder: Path) -> tuple[int, str]:
        """The program's exit code and what it printed."""
        try:
            process = subprocess.Popen(
                [*self.command, *_options(folder)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramFailed(f"cannot be run ({error.strerror})", "") from None
        try:
            said, _ = process.communicate(timeout=HANGS_S)
        except subprocess.TimeoutExpired as error:
            said = _stop(process) or _text(error.output)
            raise ProgramFailed(f"took more than {HANGS_S} s for one step", said) from None
        except BaseException:
            _stop(process)
            raise
        return process.returncode, said


def _stop(process: subprocess.Popen[str]) -> str:
    """Ends the program and those that it started; what it had printed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    said, _ = process.communicate()
    return said or ""


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _options(folder: Path) -> list[str]:
    """ASTRA-sim's options for the files of a step."""
    files = {
        "workload-configuration": "workload",
        "system-configuration": "system.json",
        "network-configuration": "network.yml",
        "remote-memory-configuration": "memory.json",
        "logging-folder": "log",
    }
    if (folder / "comm_group.json").exists():
        files["comm-group-configuration"] = "comm_group.json"
    return [f"--{key}={folder / name}" for key, name in files.items()]


def astra_sim_command() -> Path | None:
    """The command that is installed beside llmsim."""
    installed = Path(sysconfig.get_path("scripts")) / "astra-sim"
    if installed.exists():
        return installed
    found = shutil.which("astra-sim")
    return None if found is None else Path(found)


def backend_of(name: str) -> Backend:
    """The program that `--network-backend` names: "strict" or "external:PATH".

    InputError where it does not exist or cannot be run.
    """
    kind, _, given = name.partition(":")
    path = Path(given) if kind == "external" else astra_sim_command()
    if path is None:
        raise InputError(
            "--network-backend strict: the command astra-sim is not installed beside llmsim; "
            "install llmsim with `make run` or from a wheel"
        )
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(f"--network-backend {name}: {path} is no program that can be run")
    rules = ("--rules=strict",) if kind == "strict" else ()
    content = hashlib.sha256(input_files.read_bytes(path)).hexdigest()
    return Backend(name, (str(path.resolve()), *rules), f"{content} {' '.join(rules)}")
