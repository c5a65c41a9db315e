"""A load generator of somebody else, as a process under the virtual clock."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.emulation.engines.engine import Engine
from llmsim.emulation.in_client.virtual_time import SETTINGS
from llmsim.emulation.processes import end_tree
from llmsim.emulation.timekeeping.keeper import Keeper

_INSTALL = "from llmsim.emulation.in_client.virtual_time import install\n\ninstall()\n"
"""Python runs a module `sitecustomize` before a program."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Of the engine, unless the user has set them: aiperf would look for the tokenizer in a cache."""
END_S = 5
"""Seconds that a client has to end when the emulation does."""


def client_command(words: Sequence[str], python: Path, engine: Engine) -> list[str]:
    """The command line of a client, whose program may be the engine's own. InputError where there
    is none.
    """
    first, *more = words
    beside = python.parent / first
    if "/" not in first and beside.exists():
        return [str(beside), *more]
    found = shutil.which(first)
    if found is not None:
        return [found, *more]
    own = engine.program(first, python)
    if own:
        return [*own, *more]
    raise InputError(
        f'-- "{first}" is no command that runs; name a program that PATH or the folder of '
        "--engine-python has"
    )


def filled(words: Sequence[str], values: dict[str, str]) -> list[str]:
    """The words with `{name}` replaced by its value."""
    filled = list(words)
    for name, value in values.items():
        filled = [word.replace(f"{{{name}}}", value) for word in filled]
    return filled


def client_environment(
    environment: dict[str, str], keeper: Keeper, port: int, folder: Path, before: str = ""
) -> dict[str, str]:
    """What puts a Python program under the clock, and tells it where the server is; it runs the
    lines `before` first.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(before + _INSTALL, encoding="utf-8")
    waits = _waits_library()
    settings = {
        "clock": str(keeper.clock_path),
        "socket": str(keeper.socket_path),
        "port": port,
        "pid": os.getpid(),
    }
    engines_own = {name for name in _OFFLINE if name not in os.environ}
    return {
        **{name: value for name, value in environment.items() if name not in engines_own},
        SETTINGS: json.dumps(settings),
        "LD_PRELOAD": " ".join(filter(None, [str(waits), environment.get("LD_PRELOAD", "")])),
        "LLMSIM_EMULATION_CLOCK": str(keeper.clock_path),
        "LLMSIM_EMULATION_WAITS": str(keeper.threads.waits.path),
        "PYTHONPATH": os.pathsep.join([str(folder), environment["PYTHONPATH"]]),
        "VLLM_PLUGINS": "llmsim",  # its time is that of the whole process
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": environment.get("OPENAI_API_KEY", "EMPTY"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def _waits_library() -> Path:
    """The library that makes the timed waits of libc virtual, which is built beside the core."""
    found = Path(_native.__file__).with_name("llmsim_client_waits.so")
    if not found.exists():
        raise InputError(
            f"-- is followed by a client, which needs {found}; build llmsim again on Linux"
        )
    return found


@contextmanager
def client_process(
    command: Sequence[str], environment: dict[str, str], *, keeps_stdout: bool
) -> "Iterator[subprocess.Popen[bytes]]":
    """The client; what it says is shown, on stderr unless it `keeps_stdout`. The processes that it
    has started end with it.
    """
    out = None if keeps_stdout else sys.stderr
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, start_new_session=True
        )
    except OSError as error:
        raise InputError(f'-- "{command[0]}" does not run: {error.strerror}') from None
    try:
        yield process
    finally:
        end_tree(process, END_S)
