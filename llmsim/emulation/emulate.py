"""One emulation from its options to what clients saw."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsim.api.prepare import Prepared
from llmsim.config.errors import LlmsimError
from llmsim.emulation.devices import Devices, Schedule, check_deployment
from llmsim.emulation.errors import NoProgressError
from llmsim.emulation.keeper import Keeper
from llmsim.emulation.load import Answer, Clients
from llmsim.emulation.requests import check_workload, engine_requests
from llmsim.emulation.server import Server, engine_version, vllm_server
from llmsim.lowering import LoweredGroup

STALL_S = 60
"""Seconds without any message after which nothing is expected to move."""
_LOOK_S = 0.5


@dataclass(frozen=True)
class Emulated:
    """What came of it; the answers are those up to its end."""

    version: str
    answers: dict[int, Answer]
    schedule: Schedule
    virtual_ps: int
    jumps: int
    wall_s: float
    """Without the server's start."""
    start_s: float
    cpu_s: float
    """Of this process: the clients, the clock and the times of steps."""
    failure: LlmsimError | None


def emulate(prepared: Prepared, python: Path, log: Path, engine_args: Sequence[str]) -> Emulated:
    """Runs the workload against the engine's own server.

    `python` is the engine's interpreter; what the server says goes to `log`. Raises InputError
    and NotYetError before it starts; what ends it later is in the result.
    """
    lowered = prepared.lowered
    group = check_deployment(lowered, prepared.simulation.tiers is not None)
    check_workload(prepared.workload, prepared.simulation.clients)
    version = engine_version(python)
    with tempfile.TemporaryDirectory(prefix="llmsim-") as folder:
        return asyncio.run(
            _emulated(prepared, group, python, version, Path(folder), log, list(engine_args))
        )


async def _emulated(
    prepared: Prepared,
    group: LoweredGroup,
    python: Path,
    version: str,
    folder: Path,
    log: Path,
    engine_args: list[str],
) -> Emulated:
    requests = engine_requests(prepared.workload, stops=not group.engine.ignore_eos)
    devices = Devices(group, requests)
    keeper = Keeper(folder, devices)
    listener = await keeper.listen()
    settings = {
        "clock": str(keeper.clock_path),
        "socket": str(keeper.socket_path),
        "kv_windows": [0],
        "device_name": group.info.hardware,
        "device_bytes": sum(size for _, size in group.ledger.lines if size > 0),
        "v2_runner": bool(group.engine.use_v2_model_runner),
    }
    began = time.monotonic()
    failure: LlmsimError | None = None
    clients = None
    started = ready_cpu_s = began
    try:
        with vllm_server(python, group, settings, folder, log, engine_args) as server:
            await server.ready()
            started, ready_cpu_s = time.monotonic(), time.process_time()
            clients = Clients(
                keeper,
                prepared.workload,
                requests,
                group.info.model_name,
                server.port,
                _api_ps(prepared, group),
            )
            await _until_answered(keeper, clients, server)
            ended, cpu_s = time.monotonic(), time.process_time() - ready_cpu_s
    except LlmsimError as error:
        failure, ended = error, time.monotonic()
        cpu_s = time.process_time() - ready_cpu_s if clients is not None else 0.0
    finally:
        listener.close()
    return Emulated(
        version=version,
        answers={} if clients is None else clients.answers,
        schedule=devices.schedule,
        virtual_ps=keeper.time.now_ps,
        jumps=keeper.time.jumps,
        wall_s=ended - started,
        start_s=started - began,
        cpu_s=cpu_s,
        failure=failure,
    )


def _api_ps(prepared: Prepared, group: LoweredGroup) -> list[int]:
    """What the API server takes before the engine sees a request, as in `llmsim run`."""
    each, per_token = group.native.api_latency_ps, group.native.api_latency_per_token_ps
    return [each + per_token * int(tokens) for tokens in prepared.workload.input_tokens]


async def _until_answered(keeper: Keeper, clients: Clients, server: Server) -> None:
    """Raises what ends the emulation before every request has its answer."""
    load = asyncio.create_task(clients.run())
    last, last_at = keeper.messages, time.monotonic()
    while not load.done():
        await asyncio.wait({load}, timeout=_LOOK_S)
        if load.done():
            break
        if keeper.failure is not None:
            load.cancel()
            raise keeper.failure
        if server.process.poll() is not None:
            load.cancel()
            raise NoProgressError(f"the server has ended: {server.last_words()}")
        if keeper.messages != last:
            last, last_at = keeper.messages, time.monotonic()
        elif time.monotonic() - last_at > STALL_S:
            load.cancel()
            raise NoProgressError(f"nothing has moved for {STALL_S} s: {keeper.time.blockers()}")
    load.result()
    if keeper.failure is not None:
        raise keeper.failure
