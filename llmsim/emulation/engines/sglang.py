"""SGLang's server as an emulation starts it and talks to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmsim import _native
from llmsim.api.preparation.prepare import Prepared
from llmsim.config.engine.options import SGLANG_POLICIES, SGLANG_RETRACTIONS
from llmsim.config.engine.schedulers import SGLANG
from llmsim.config.errors import InputError, NotYetError
from llmsim.emulation.engines.engine import Endpoint, RefusedError
from llmsim.emulation.engines.installed import installed_version
from llmsim.emulation.servers.of_instances import EngineServer, EngineStage
from llmsim.emulation.servers.server import engine_environment
from llmsim.lowering import LoweredGroup
from llmsim.scheduling.conformance.sglang.platform import write_model
from llmsim.scheduling.conformance.vllm.request import LiveRequest

RELEASES = ("0.5.23",)
"""Releases whose classes the plug-in wraps."""
_ENTRY_POINTS = """[sglang.srt.plugins]
llmsim = llmsim.emulation.in_engine.sglang.plugin:general
"""
_BEFORE_IMPORTS = """from llmsim.emulation.in_engine.sglang.stand_ins import install

install()
"""
"""Python runs a module `sitecustomize` before a program."""
_PERMILLE = 1000
_NOT_EMULATED = (
    "--dp-size",
    "--enable-dp-attention",
    "--ep-size",
    "--pp-size",
    "--nnodes",
    "--speculative-",
    "--enable-hierarchical-cache",
    "--hicache-",
    "--disaggregation-",
    "--enable-lora",
    "--tokenizer-worker-num",
    "--enable-priority-scheduling",
)
"""Flags, and beginnings of flags, of what `llmsim emulate sglang` does not run."""


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta = _Meta()
    error: dict[str, Any] | None = None


_events = msgspec.json.Decoder(_Event)


class Generate:
    """SGLang's own endpoint, with token ids in place of text."""

    path = "/generate"

    def __init__(self, max_model_len: int) -> None:
        """`max_model_len`: tokens of a prompt with its answer, at most."""
        self._max_model_len = max_model_len

    def body(self, one: LiveRequest, model: str, *, prompt_alone: bool) -> dict[str, Any]:
        """The JSON of a request, under our name."""
        end: dict[str, Any] = {"max_new_tokens": one.output_tokens, "ignore_eos": True}
        if one.stops:
            room = max(self._max_model_len - one.input_tokens, 1)
            last = one.output(one.output_tokens - 1)
            end = {"max_new_tokens": room, "stop_token_ids": [last]}
        sampling = {"temperature": 0, **end}
        return {
            "rid": one.name,
            "input_ids": one.prompt(),
            "sampling_params": sampling,
            "stream": True,
        }

    def tokens(self, event: bytes) -> int:
        """How many tokens an event brings; RefusedError where SGLang refuses the request."""
        heard = _events.decode(event)
        if heard.error is not None:
            raise RefusedError(str(heard.error.get("message", heard.error)))
        return len(heard.output_ids)


class Sglang:
    """SGLang, through its plug-ins and a module that Python runs before each of its processes."""

    name, title = "sglang", "SGLang"
    takes_client = False

    def options(self) -> list[str]:
        """The scheduler is SGLang's."""
        return ["--scheduler", SGLANG]

    def check(self, prepared: Prepared, engine_args: Sequence[str]) -> None:
        """One instance that SGLang runs by itself, and no option of the server that contradicts."""
        lowered = prepared.lowered
        groups = lowered.groups
        tiers = prepared.simulation.tiers is not None or bool(lowered.kv_offloading)
        for is_so, what in (
            (len(groups) > 1, "several instances"),
            (tiers, "KV tiers"),
            (prepared.workload.may_give_up, "clients that give up"),
            (prepared.workload.priority is not None, "priorities of the trace"),
            *_of_group(groups[0]),
        ):
            if is_so:
                raise NotYetError(
                    f"{what}: `llmsim emulate sglang` runs one instance without pipeline stages, "
                    "on the scheduler sglang; `llmsim run` simulates the cluster file as it is"
                )
        _check_words(groups[0], engine_args)

    def version(self, python: Path) -> str:
        """The version of SGLang that this interpreter has; InputError where it has none."""
        return installed_version(python, self.name, self.title, "SGLANG=0.5.23")

    def release_options(self, version: str, stages: Sequence[EngineStage]) -> list[str]:
        """There are none; NotYetError for a release whose classes have other names."""
        if version not in RELEASES:
            raise NotYetError(
                f"--engine-python: SGLang {version} is not emulated; name an interpreter with "
                f"{' or '.join(RELEASES)}"
            )
        return []

    def endpoint(self, server: EngineServer) -> Endpoint:
        """SGLang's own."""
        assert server.first.scheduler is not None, "engine_stages looked"
        return Generate(server.first.scheduler.kv.max_model_len)

    def settings(self, server: EngineServer) -> dict[str, object]:
        """The plug-in knows all it needs."""
        return {}

    def environment(
        self, server: EngineServer, settings: dict[str, object], folder: Path
    ) -> dict[str, str]:
        """The environment of SGLang's processes; their sockets lie in the folder, too."""
        environment = engine_environment(settings, folder, _ENTRY_POINTS)
        (folder / "sitecustomize.py").write_text(_BEFORE_IMPORTS, encoding="utf-8")
        scheduler = server.first.scheduler
        assert scheduler is not None, "engine_stages looked"
        return environment | {
            "PYTHONHASHSEED": "0",
            "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": str(scheduler.parameters["new_tokens"]),
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "llmsim.scheduling.conformance.sglang.model",
            "SGLANG_PLUGINS": "llmsim",
            "SGLANG_USE_CPU_ENGINE": "1",
            "TMPDIR": str(folder),
        }

    def command(self, python: Path, server: EngineServer, model: Path, port: int) -> list[str]:
        """The server takes token ids, and answers with them."""
        group = server.first
        assert group.scheduler is not None, "engine_stages looked"
        folder = write_model(model, group.scheduler.kv.max_model_len, 0, 0)
        words = ["--host", "127.0.0.1", "--port", str(port)]
        return [
            *[str(python), "-m", "sglang.launch_server", "--model-path", folder],
            *_options(group),
            *words,
        ]


def _of_group(group: LoweredGroup) -> list[tuple[bool, str]]:
    """What a group may have that is not emulated."""
    engine, scheduler = group.engine, group.scheduler
    if scheduler is None:
        return [(True, "an instance that gets no requests")]
    if engine.scheduler != SGLANG:
        return [(True, f"--scheduler {engine.scheduler}")]
    return [
        (group.native.role != _native.Role.BOTH, "pd_type"),
        (group.layout.pp > 1, "pipeline stages (pp_size)"),
        (engine.speculation is not None, "speculative decoding"),
        (engine.endpoint is not None, "--endpoint"),
        (engine.scheduling_policy != "fcfs", "--scheduling-policy"),
        (scheduler.decode_only, "--skip-prefill"),
        (scheduler.window_pool.window > 0, "layers with a window"),
        (scheduler.state_pool.slots > 0, "layers that keep states"),
        (scheduler.host_cache.pages > 0, "HiCache"),
        (bool(scheduler.parameters["priorities"]), "sglang_priority_scheduling"),
    ]


def _options(group: LoweredGroup) -> list[str]:
    """The engine's options as flags; the server has one process for all ranks of the group."""
    engine, scheduler = group.engine, group.scheduler
    assert scheduler is not None, "engine_stages looked"
    kv, parameters = scheduler.kv, scheduler.parameters
    chunk = scheduler.max_num_scheduled_tokens if engine.enable_chunked_prefill else -1
    values: dict[str, object] = {
        "--served-model-name": group.info.model_name,
        "--load-format": "dummy",
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--mem-fraction-static": 0.8,
        "--random-seed": 1,
        "--log-level": "warning",
        "--page-size": kv.block_size,
        "--max-total-tokens": (kv.num_blocks - 1) * kv.block_size,
        "--context-length": kv.max_model_len,
        "--chunked-prefill-size": chunk,
        "--max-prefill-tokens": parameters["max_prefill_tokens"],
        "--max-running-requests": engine.max_num_seqs,
        "--schedule-policy": SGLANG_POLICIES[parameters["policy"]],
        "--retraction-policy": SGLANG_RETRACTIONS[parameters["retraction_policy"]],
        "--schedule-conservativeness": parameters["conservativeness"] / _PERMILLE,
        "--scheduler-recv-interval": parameters["recv_interval"],
    }
    flags = ["--skip-tokenizer-init", "--disable-cuda-graph", "--skip-server-warmup"]
    flags += ["--incremental-streaming-output"]
    for is_so, flag in (
        (not engine.enable_prefix_caching, "--disable-radix-cache"),
        (not parameters["overlap"], "--disable-overlap-schedule"),
        (bool(parameters["mixed_chunk"]), "--enable-mixed-chunk"),
    ):
        if is_so:
            flags.append(flag)
    return [*(str(part) for pair in values.items() for part in pair), *flags]


def _check_words(group: LoweredGroup, engine_args: Sequence[str]) -> None:
    """Options of the server itself neither repeat nor contradict those that are derived."""
    ours = {word for word in _options(group) if word.startswith("--")}
    ours |= {"--model-path", "--model", "--host", "--port", "--tp-size", "--tensor-parallel-size"}
    for word in engine_args:
        flag = word.split("=")[0]
        if flag.startswith(_NOT_EMULATED):
            raise NotYetError(
                f"--engine-args {flag}: `llmsim emulate sglang` does not run this; leave it out"
            )
        if flag in ours:
            raise InputError(
                f"--engine-args {flag}: `llmsim emulate` gives the server this option itself, as "
                "the cluster file and the options of `llmsim run` say; change it there"
            )
