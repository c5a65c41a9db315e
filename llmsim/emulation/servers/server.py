"""Starts the engine's own server, with what makes its devices and its clock ours."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from llmsim.config.errors import InputError
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.in_engine.plugin import SETTINGS
from llmsim.emulation.requests import VOCABULARY
from llmsim.emulation.servers.of_instances import EngineServer
from llmsim.emulation.words import WORDS
from llmsim.lowering import LoweredGroup
from llmsim.scheduling.conformance.engine_python import (
    check_interpreter,
    last_words,
    linked_environment,
)
from llmsim.scheduling.conformance.vllm.installed import engine_options
from llmsim.scheduling.conformance.vllm.platform import write_model

READY_S = 900
"""Seconds that the server has to start, on a machine with other work, too."""
END_S = 20
"""Seconds that it has to end, before it is killed."""
_LOOK_S = 0.2
_ENTRY_POINTS = """[vllm.platform_plugins]
llmsim = llmsim.emulation.in_engine.plugin:platform

[vllm.general_plugins]
llmsim_clock = llmsim.emulation.in_engine.plugin:general
"""
_METADATA = "Metadata-Version: 2.1\nName: llmsim-emulation\nVersion: 1\n"
_FLAGS = {"policy": "scheduling-policy", "num_gpu_blocks": "num-gpu-blocks-override"}
"""Flags of vLLM whose names are not those of `engine_options`."""
_USAGE_ERROR = re.compile(r"(?:[\w.]+ )?[\w.]+: error: (.*)")
"""What the parser of vLLM's command line ends with."""
_REFUSALS = re.compile(r"(?:[\w.]+\.)?(?:ValidationError|ValueError|NotImplementedError): ?(?=\S)")
"""What vLLM's checks of its configuration end with."""
_ENDS_OF_REASONS = (" [type=", "For further information")
"""What follows a reason and says nothing new."""
_REASON_LINES, _LONGEST_REASON = 3, 300
"""Lines of such an error, and characters of a reason, that are repeated."""
_ASK_VERSION = "from importlib.metadata import version; print(version('vllm'))"


def engine_version(python: Path) -> str:
    """The version of vLLM that this interpreter has; InputError where it has none."""
    check_interpreter(python)
    asked = subprocess.run([str(python), "-c", _ASK_VERSION], capture_output=True, text=True)
    if asked.returncode != 0:
        raise InputError(
            f'--engine-python: "{python}" has no vLLM; '
            "`make conformance VLLM=0.33.0` installs one that needs no GPU"
        )
    return asked.stdout.strip()


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
                raise NoProgressError(f"the server ended before it was ready: {self.last_words()}")
            if await self._answers():
                return
            await asyncio.sleep(_LOOK_S)
        raise NoProgressError(f"the server was not ready after {READY_S} s: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what it has said."""
        return last_words(self.log.read_text(encoding="utf-8", errors="replace"))

    def _check_extra(self) -> None:
        said = why_refused(self.log.read_text(encoding="utf-8", errors="replace"))
        if self._extra and said:
            raise InputError(
                f'--engine-args "{shlex.join(self._extra)}": vLLM refuses the options: {said}',
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
    """The reason that vLLM gives where it refuses an option, on one line; empty: it gives none."""
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


def vllm_environment(group: LoweredGroup, settings: dict[str, Any], folder: Path) -> dict[str, str]:
    """The environment of vLLM's processes; `folder` is made, with what they import."""
    folder.mkdir()
    environment = linked_environment(folder)
    plugin = folder / "llmsim_emulation-1.dist-info"
    plugin.mkdir()
    (plugin / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    (plugin / "METADATA").write_text(_METADATA, encoding="utf-8")
    environment |= {
        SETTINGS: json.dumps(settings),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # the coordinator loads no plug-ins of its own
        "VLLM_PLUGINS": "llmsim,llmsim_clock",
        "VLLM_USE_V2_MODEL_RUNNER": str(int(bool(group.engine.use_v2_model_runner))),
    }
    return environment


def vllm_command(python: Path) -> list[str]:
    """The words in place of `vllm`."""
    return [str(python), "-m", "vllm.entrypoints.cli.main"]


@contextmanager
def vllm_server(
    python: Path,
    engine: EngineServer,
    environment: dict[str, str],
    model: Path,
    log: Path,
    extra: list[str],
) -> Iterator[Server]:
    """`extra` are further options of the server. What it says goes to `log`.

    It takes text only where the folder `model` has a tokenizer.
    """
    group = engine.first
    port = _free_port()
    has_words = (model / "tokenizer.json").exists()
    command = [*vllm_command(python), "serve"]
    command += [
        write_model(
            model,
            group.scheduler.kv.max_model_len,  # type: ignore[union-attr]
            WORDS if has_words else VOCABULARY,
            group.model.num_experts if engine.lockstep is not None else 0,
        )
    ]
    command += [] if has_words else ["--skip-tokenizer-init"]
    command += [*_options(engine, str(model)), "--host", "127.0.0.1", "--port", str(port), *extra]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield Server(process, port, log, extra)
        finally:
            _end(process)


def _options(engine: EngineServer, model: str) -> list[str]:
    """The engine's options as flags; `model` stands for a drafter's, too."""
    group = engine.first
    words = ["--served-model-name", group.info.model_name, "--load-format", "dummy"]
    words += ["--disable-uvicorn-access-log"]
    words += ["--tensor-parallel-size", str(group.layout.tp)]
    words += ["--pipeline-parallel-size", str(group.layout.pp)]
    if len(engine.groups) > 1:
        words += ["--data-parallel-size", str(len(engine.groups)), "--api-server-count", "1"]
    if engine.lockstep is not None and group.layout.ep > 1:
        words.append("--enable-expert-parallel")
    if engine.connector is not None:
        words += ["--kv-transfer-config", json.dumps(_transfer_config(engine.connector))]
    options = engine_options(group.engine, group.scheduler)
    speculative = options.pop("speculative", None)
    if speculative is not None:
        drafter = {} if speculative["method"] == "ngram" else {"model": model}
        words += ["--speculative-config", json.dumps(speculative | drafter)]
    for name, value in options.items():
        flag = _FLAGS.get(name, name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def _transfer_config(connector: dict[str, bool]) -> dict[str, Any]:
    return {
        "kv_connector": "VirtualConnector",
        "kv_connector_module_path": "llmsim.emulation.in_engine.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": connector,
    }


def _free_port() -> int:
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
