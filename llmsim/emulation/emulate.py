"""One emulation from its options to what clients saw."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from llmsim import _native
from llmsim.api.preparation.prepare import Prepared
from llmsim.config.errors import LlmsimError, NotYetError
from llmsim.core import Workload
from llmsim.emulation.client import client_command, client_environment, client_process, filled
from llmsim.emulation.devices import Counts, Devices, Model, Schedule
from llmsim.emulation.engines.engine import Engine
from llmsim.emulation.errors import DegradedError, NoProgressError
from llmsim.emulation.load import Answer, Clients
from llmsim.emulation.lockstep import RankDevices, Rounds
from llmsim.emulation.processes import computed_since, cpu_seconds, cpu_seconds_of
from llmsim.emulation.requests import check_workload, engine_requests
from llmsim.emulation.servers.copies import HostCopies
from llmsim.emulation.servers.doors import Door, Stage
from llmsim.emulation.servers.links import (
    Links,
    Prompts,
    PushLinks,
    WrittenLinks,
    outside_network,
)
from llmsim.emulation.servers.of_instances import (
    EngineServer,
    EngineStage,
    Handover,
    engine_stages,
    handover_of,
)
from llmsim.emulation.servers.relay import Relay
from llmsim.emulation.servers.server import Server, engine_server, free_port
from llmsim.emulation.step_counts import StepCounts, no_counts
from llmsim.emulation.timekeeping.keeper import Keeper
from llmsim.emulation.words import TOKENIZER_FILES, EndlessAnswers, write_tokenizer
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.scheduling.conformance.model_runner import ModelRunner

STALL_S = 60
"""Seconds without any message after which nothing is expected to move: on the wall where no process
computes either, else of computing (a machine that is busy with other work is slow, not stuck).
"""
_IDLE_SHARE = 0.03
"""A server that computes less of its time does not compute: its processes look whether they may."""
_LOOK_S = 0.5


@dataclass
class Asked:
    """The requests, by row."""

    names: list[str] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Emulated:
    """What came of it; the answers are those up to its end."""

    version: str
    asked: Asked
    answers: dict[int, Answer]
    schedules: Sequence[Schedule]
    """Of each engine core."""
    virtual_ps: int
    jumps: int
    wall_s: float
    """From the first request on."""
    start_s: float
    """Of the server, and of a client of its own."""
    cpu_s: float | None
    """Of the server and of this process: the clients, the clock and the times of steps. None: a
    process of the server has ended before the others.
    """
    reasons: tuple[str, ...]
    """Why another emulation may differ; none: it gives the same."""
    failure: LlmsimError | None


@dataclass(frozen=True)
class Client:
    """A load generator of somebody else."""

    words: list[str]
    """With `{base_url}`, `{port}`, `{model}` and `{tokenizer}` where these belong."""
    keeps_stdout: bool = True


def emulate(
    engine: Engine,
    prepared: Prepared,
    python: Path,
    log: Path,
    engine_args: Sequence[str],
    client: Client | None = None,
) -> Emulated:
    """Runs the workload, or what the client sends instead, against the engine's own servers.

    `python` is the engine's interpreter; what the server says goes to `log`. The model's files lie
    beside it, so that the results of a client name the same place each time. Raises InputError and
    NotYetError before it starts; what ends it later is in the result.
    """
    engine.check(prepared, engine_args)
    stages = engine_stages(prepared)
    if client is None:
        servers = [one for stage in stages for one in stage.servers]
        check_workload(
            prepared.workload,
            hands_over=len(stages) > 1,
            stays=_clients_stay(prepared.lowered, stages),
            takes_adapters=all(one.adapters for one in servers),
            encodes=all(one.encoder for one in servers),
        )
    else:
        _check_before_client(prepared.lowered)
    version = engine.version(python)
    args_of_servers = [
        [*engine_args, *engine.release_options(version, server)]
        for stage in stages
        for server in stage.servers
    ]
    if client is not None:
        client_command(client.words, python, engine)
    with tempfile.TemporaryDirectory(prefix="llmsim-") as folder:
        model = log.parent / "model"
        one = _Emulation(engine, prepared, stages, python, Path(folder), model, client)
        return asyncio.run(one.run(version, log, args_of_servers))


def _clients_stay(lowered: LoweredDeployment, stages: Sequence[EngineStage]) -> bool:
    """Whether no client may leave before its answer's end. Servers that write KV hear of it in ways
    of their own; `VLLM_DP` and `LOR` count the request until its engine has dropped it.
    """
    match handover_of(lowered):
        case Handover.BOOTSTRAPPED:
            return False
        case Handover.WRITTEN:
            return len(stages) > 1
        case Handover.PULLED:
            return len(stages) > 1 and any(map(_counts_engines, stages))


def _counts_engines(stage: EngineStage) -> bool:
    """Whether there is a choice in it that depends on what engines hold."""
    takes_turns = stage.router == "RR" and all(one.is_alone_or_named for one in stage.servers)
    return sum(len(one.groups) for one in stage.servers) > 1 and not takes_turns


def _check_before_client(lowered: LoweredDeployment) -> None:
    """NotYetError for servers that the relay does not stand before."""
    if any(one.engine.endpoint is not None for one in lowered.groups):
        raise NotYetError(
            "--endpoint: the requests of a client after -- take no time of the API server beside "
            "api_latency_ns; leave the option out, or give --dataset in place of the client"
        )
    if handover_of(lowered) is Handover.WRITTEN:
        raise NotYetError(
            "KV that is pushed: the requests of a client after -- pass vLLM's servers one after "
            "the other; add --kv-transfer whole --kv-transfer-mode pull, or give --dataset in "
            "place of the client"
        )


class Stall:
    """Whether messages have stopped for `STALL_S`."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        """`pids`: the processes that compute, each with those that it has started."""
        self._pids = pids
        self._messages = -1
        self._since_s = self._cpu_s = 0.0
        self._idle_since_s, self._last_cpu_s = 0.0, 0.0

    def is_long(self, messages: int) -> bool:
        """To be asked again and again; `messages`: how many there were so far."""
        now_s = time.monotonic()
        if messages != self._messages:
            self._messages, self._cpu_s = messages, -1.0
            self._since_s = now_s
        if now_s - self._since_s < STALL_S / 4:
            return False
        pids = self._pids()
        cpu_s, looks_s = sum(map(cpu_seconds, pids)), _IDLE_SHARE * STALL_S * len(pids)
        if self._cpu_s < 0:
            self._cpu_s = self._last_cpu_s = cpu_s
            self._idle_since_s = self._since_s
        if cpu_s - self._last_cpu_s > looks_s:
            self._last_cpu_s, self._idle_since_s = cpu_s, now_s
        return now_s - self._idle_since_s > STALL_S or cpu_s - self._cpu_s > STALL_S


class _Emulation:
    """The clock, the devices and the load around the servers."""

    def __init__(
        self,
        engine: Engine,
        prepared: Prepared,
        stages: Sequence[EngineStage],
        python: Path,
        folder: Path,
        model: Path,
        client: Client | None,
    ) -> None:
        self._engine = engine
        self._prepared, self._stages, self._client = prepared, stages, client
        self._engines = [server for stage in stages for server in stage.servers]
        self._group = group = self._engines[0].first
        self._python, self._folder = python, folder
        self._requests = engine_requests(
            prepared.workload,
            stops=not group.engine.ignore_eos,
            ranked=engine.ranks_requests(self._engines[0]),
        )
        self._endless: list[EndlessAnswers] = []
        """Of a client's requests, for each group."""
        self._network = outside_network(prepared.lowered) if len(stages) > 1 else None
        self._devices = self._all_devices()
        self._handover = handover_of(prepared.lowered)
        links = None if self._network is None else self._links(self._network)
        copies = HostCopies(prepared.lowered) if prepared.lowered.kv_offloading else None
        rounds = [
            [group.info.index for group in one.groups] for one in self._engines if one.runs_rounds
        ]
        self._keeper = Keeper(folder, self._devices, links, copies=copies, lockstep=rounds)
        self._relay: Relay | None = None
        self._clients: Clients | None = None
        self._models = [
            model if number == 0 else model.with_name(f"{model.name}{number}")
            for number in range(len(self._engines))
        ]
        """What each server reads of its model, which may differ from that of others."""
        for one in self._models:
            _make_model_folder(one, has_words=client is not None)
        self._client_pids: list[int] = []
        self._server_is_dead = False

    def _links(self, network: "_native.OutsideNetwork") -> Links:
        lowered, prompts = self._prepared.lowered, Prompts(self._prompt_tokens, self._prefill_of)
        match self._handover:
            case Handover.PULLED:
                return Links(lowered, prompts, network)
            case Handover.WRITTEN:
                return WrittenLinks(lowered, prompts, network, self._may_compute)
            case Handover.BOOTSTRAPPED:
                return PushLinks(lowered, prompts, network)

    def _may_compute(self, row: int) -> None:
        """A decode server has memory for the prompt."""
        assert self._clients is not None, "_check_before_client looked"
        self._clients.has_memory(row)

    def _all_devices(self) -> "list[Devices | RankDevices]":
        """By number of engine core."""
        numbered = [
            (group.info.index, one)
            for server in self._engines
            for group, one in zip(server.groups, self._devices_of(server), strict=True)
        ]
        return [one for _, one in sorted(numbered, key=itemgetter(0))]

    def _devices_of(self, server: EngineServer) -> "Sequence[Devices | RankDevices]":
        if not server.runs_rounds:
            drafts_after = self._engine.drafts_after
            return [
                Devices(one, self._model_of(one), drafts_after, self._counts_of(one))
                for one in server.groups
            ]
        expanded = server.first.expanded if server.lockstep is None else server.lockstep.expanded
        rounds = Rounds(server.groups, expanded, server.contended, self._network)
        return [
            RankDevices(one, self._model_of(one), rounds, member, self._engine.drafts_after)
            for member, one in enumerate(server.groups)
        ]

    def _schedules(self) -> list[Schedule]:
        """Of all engine cores, which may run behind the last answer; no step begins any more."""
        if self._network is not None:
            self._network.run_out()
        return [one.schedule for one in self._devices]

    def _counts_of(self, group: LoweredGroup) -> Counts:
        """The requests of a client of its own have neither adapters nor encoder inputs."""
        if self._client is not None:
            return no_counts
        return StepCounts(group, self._prepared.workload).begin_step

    def _model_of(self, group: LoweredGroup) -> Model:
        assert group.scheduler is not None, "engine_stages looked"
        if self._client is not None:
            self._endless.append(EndlessAnswers(group.scheduler.speculation))
            return self._endless[-1]
        return ModelRunner(self._requests, group.scheduler.speculation)

    def _environments(self) -> list[dict[str, str]]:
        """Of each server."""
        return [
            self._engine.environment(one, self._settings(one), self._folder / f"server{number}")
            for number, one in enumerate(self._engines)
        ]

    def _settings(self, server: EngineServer) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "clock": str(self._keeper.clock_path),
            "socket": str(self._keeper.socket_path),
            "engines": [one.info.index for one in server.groups],
            **self._engine.settings(server),
        }

    @contextmanager
    def _servers(
        self, environments: Sequence[dict[str, str]], log: Path, engine_args: list[list[str]]
    ) -> Iterator[list[Server]]:
        """All servers, with options of each; each beside the first one has a log of its own."""
        servers = []
        with ExitStack() as stack:
            for number, one in enumerate(self._engines):
                port = free_port()
                command = self._engine.command(self._python, one, self._models[number], port)
                own_log = log if number == 0 else log.with_name(f"server{number}.log")
                words = engine_args[number]
                started = engine_server(command, words, environments[number], port, own_log)
                servers.append(stack.enter_context(started))
            yield servers

    async def run(self, version: str, log: Path, engine_args: list[list[str]]) -> Emulated:
        """Starts the servers, with options of each, and everything after them."""
        async with self._keeper.listening():
            return await self._emulate(version, log, engine_args)

    async def _emulate(self, version: str, log: Path, engine_args: list[list[str]]) -> Emulated:
        keeper = self._keeper
        environments = self._environments()
        failure: LlmsimError | None = None
        began = started = time.monotonic()
        try:
            with self._servers(environments, log, engine_args) as servers:
                for server in servers:
                    await server.ready()
                started = time.monotonic()
                before = _computed_s(servers)
                try:
                    await self._load(servers, environments[0])
                except LlmsimError as error:
                    failure = error
                ended = time.monotonic()
                cpu_s = computed_since(before, _computed_s(servers))
                degraded, reasons = keeper.time.degraded, self._reasons()
                keeper.close()
        except LlmsimError as error:
            failure, ended, cpu_s = error, time.monotonic(), None
            degraded, reasons = "", ()
        if self._relay is not None and self._relay.first_s is not None:
            started = self._relay.first_s
        asked, answers = self._asked(), self._answers()
        if degraded:
            failure = _degraded(degraded, asked, answers)
        return Emulated(
            version=version,
            asked=asked,
            answers=answers,
            schedules=self._schedules(),
            virtual_ps=self._ended_ps(answers, goes_on=failure is not None),
            jumps=keeper.time.jumps,
            wall_s=ended - started,
            start_s=started - began,
            cpu_s=cpu_s,
            reasons=(*reasons, degraded) if degraded else reasons,
            failure=failure,
        )

    def _ended_ps(self, answers: dict[int, Answer], *, goes_on: bool) -> int:
        """When the last answer is there, behind which engines may run, and a client of its own may
        wait. `goes_on`: it has not come to that.
        """
        gave_up = any(one.gave_up for one in answers.values())
        if self._relay is None and (goes_on or gave_up):
            return self._keeper.time.now_ps
        return max((_last_ps(one) for one in answers.values()), default=0)

    async def _load(self, servers: list[Server], environment: dict[str, str]) -> None:
        if self._client is None:
            self._clients = Clients(
                self._keeper,
                self._prepared.workload,
                self._requests,
                self._group.info.model_name,
                self._doors([server.port for server in servers]),
                self._engine.endpoint(self._engines[0]),
                self._prepared.simulation.clients,
                handover=self._handover,
            )
            await self._until(self._clients.run(), servers)
            return
        stages = self._doors([server.port for server in servers])
        api = self._engine.openai
        self._relay = relay = Relay(
            self._keeper,
            self._api_ps,
            self._joins,
            stages,
            api,
            at_once=self._handover is Handover.BOOTSTRAPPED,
        )
        self._keeper.relay = relay
        listener = await relay.listen()
        sends = asyncio.create_task(relay.run())
        values = {
            "base_url": f"http://127.0.0.1:{relay.port}",
            "port": str(relay.port),
            "model": self._group.info.model_name,
            "tokenizer": str(self._models[0]),
        }
        words = client_command(self._client.words, self._python, self._engine)
        command = filled(words, values)
        environment = client_environment(
            environment,
            self._keeper,
            relay.port,
            self._folder / "client",
            self._engine.before_client,
        )
        try:
            with client_process(
                command, environment, keeps_stdout=self._client.keeps_stdout
            ) as process:
                self._client_pids.append(process.pid)
                await self._until(self._client_ends(process), servers)
        finally:
            sends.cancel()
            listener.close()

    async def _client_ends(self, process: "subprocess.Popen[bytes]") -> None:
        while process.poll() is None:
            await asyncio.sleep(_LOOK_S / 10)
        await asyncio.sleep(0)
        if process.returncode != 0:
            raise NoProgressError(f"the client has ended with exit code {process.returncode}")

    def _joins(self, row: int, tokens: int) -> None:
        """A client's request has reached an engine core."""
        for one in self._endless:
            one.joins(row, tokens)

    def _prompt_tokens(self, row: int) -> int:
        if self._relay is not None:
            return self._relay.input_tokens[row]
        return int(self._prepared.workload.input_tokens[row])

    def _prefill_of(self, row: int) -> int:
        """Where KV is pulled, it has been computed; else servers and ranks are chosen before."""
        if self._handover is Handover.PULLED:
            return self._keeper.cores_of(row)[0]
        sender = self._clients if self._relay is None else self._relay
        assert sender is not None, "it has sent the request"
        return sender.passed[row][0]

    def _doors(self, ports: Sequence[int]) -> list[Stage]:
        """`ports`: of the servers, in their order."""
        left = iter(ports)
        stages = []
        for stage in self._stages:
            doors = [self._doors_of(server, next(left)) for server in stage.servers]
            stages.append(Stage([door for each in doors for door in each], stage.router))
        return stages

    def _doors_of(self, server: EngineServer, port: int) -> list[Door]:
        """One for each rank where requests choose theirs."""
        if server.lockstep is None or server.balances:
            return [door_of(server.first, port, self._prepared.workload)]
        return [
            door_of(one, port, self._prepared.workload, rank)
            for rank, one in enumerate(server.groups)
        ]

    def _api_ps(self, group: int, tokens: int) -> int:
        return _api_ps(self._prepared.lowered.groups[group], tokens)

    async def _until(self, work: Awaitable[None], servers: list[Server]) -> None:
        """Raises what ends the emulation before the work does."""
        load = asyncio.ensure_future(work)
        with ExitStack() as stack:
            stack.callback(load.cancel)
            for server in servers:
                stack.enter_context(self._hears_of_end(server))
            await self._watch(load, servers)

    @contextmanager
    def _hears_of_end(self, server: Server) -> Iterator[None]:
        loop, exits = asyncio.get_running_loop(), os.pidfd_open(server.process.pid)

        def ends() -> None:
            loop.remove_reader(exits)
            self._server_died(server)

        loop.add_reader(exits, ends)
        try:
            yield
        finally:
            loop.remove_reader(exits)
            os.close(exits)

    async def _watch(self, load: "asyncio.Future[None]", servers: list[Server]) -> None:
        keeper = self._keeper
        stall = Stall(lambda: [*(one.process.pid for one in servers), *self._client_pids])
        while not load.done():
            await asyncio.wait({load}, timeout=_LOOK_S)
            if load.done():
                break
            for server in servers:
                self._check_server(server)
            if keeper.failure is not None and not self._server_is_dead:
                raise keeper.failure
            connected = self._relay is not None and self._relay.first_s is not None
            if connected and not keeper.has_client:
                raise NoProgressError(
                    "the client is not under the clock: it must be a program of Python that does "
                    "not ignore PYTHONPATH"
                )
            by_wall = keeper.time.degraded and keeper.time.next_ps is not None
            if not by_wall and stall.is_long(keeper.messages):
                raise NoProgressError(f"nothing has moved for {STALL_S} s: {keeper.blockers()}")
        load.result()
        if keeper.failure is not None:
            raise keeper.failure

    def _server_died(self, server: Server) -> None:
        """Called as soon as it has ended."""
        if server.process.poll() == -signal.SIGKILL:
            self._server_is_dead = True
            self._keeper.died("the API server")

    def _check_server(self, server: Server) -> None:
        """Raises NoProgressError where it has ended, unless a client of its own can still go on."""
        if server.process.poll() is None or (self._server_is_dead and self._client is not None):
            return
        raise NoProgressError(f"the server has ended: {server.last_words()}")

    def _reasons(self) -> tuple[str, ...]:
        relay = [] if self._relay is None else self._relay.reasons
        return tuple(dict.fromkeys([*self._keeper.reasons, *relay]))

    def _answers(self) -> dict[int, Answer]:
        if self._relay is not None:
            return self._relay.answers
        return {} if self._clients is None else self._clients.answers

    def _asked(self) -> Asked:
        if self._relay is not None:
            relay, rows = self._relay, sorted(self._relay.answers)
            return Asked(
                [str(row) for row in rows],
                [relay.input_tokens[row] for row in rows],
                [relay.output_tokens[row] for row in rows],
            )
        if self._client is not None:
            return Asked()  # the server has not started
        workload = self._prepared.workload
        names = workload.request_id
        return Asked(
            [str(row) if names is None else names[row] for row in range(len(workload))],
            workload.input_tokens.tolist(),
            workload.output_tokens.tolist(),
        )


def _make_model_folder(folder: Path, *, has_words: bool) -> None:
    """With a tokenizer where clients send text, and none of an emulation before this one."""
    folder.mkdir(exist_ok=True)
    for name in TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)
    if has_words:
        write_tokenizer(folder)


def door_of(group: LoweredGroup, port: int, workload: Workload, rank: int | None = None) -> Door:
    """The server of a group, or its rank in lock-step."""
    return Door(
        port,
        [_api_ps(group, int(tokens)) for tokens in workload.input_tokens],
        group.info.index,
        rank,
        leaving_ps=group.native.api_latency_ps + group.native.abort_latency_ps,
        api_server=None if group.engine.endpoint is None else group.native.api_server,
    )


def _api_ps(group: LoweredGroup, tokens: int) -> int:
    """What the API server takes before the engine sees a request, as in `llmsim run`."""
    native = group.native
    return int(native.api_latency_ps + native.api_latency_per_token_ps * tokens)


def _last_ps(answer: Answer) -> int:
    """When its client has heard of it last, or has asked."""
    return answer.token_ps[-1] if answer.token_ps else answer.arrival_ps


def _computed_s(servers: list[Server]) -> dict[int, float]:
    """CPU time of this process and of the servers' processes, by their ids."""
    others = cpu_seconds_of(one.process.pid for one in servers)
    return others | {os.getpid(): time.process_time()}


def _degraded(why: str, asked: Asked, answers: dict[int, Answer]) -> DegradedError:
    done = sum(len(one.token_ps) == asked.output_tokens[row] > 0 for row, one in answers.items())
    return DegradedError(
        f"{why}; from then on time went by the wall clock, and {done:,} of {len(asked.names):,} "
        "requests have their answers"
    )
