"""vLLM's server as an emulation starts it and talks to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmsim import _native
from llmsim.api.preparation.prepare import Prepared
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.schedulers import OWN_DEFAULTS
from llmsim.config.errors import InputError
from llmsim.emulation.devices import drafts_by_sequences
from llmsim.emulation.engines.engine import Endpoint
from llmsim.emulation.engines.installed import installed_version
from llmsim.emulation.requests import VOCABULARY
from llmsim.emulation.servers.of_instances import EngineServer
from llmsim.emulation.servers.server import engine_environment
from llmsim.emulation.words import WORDS
from llmsim.lowering import LoweredGroup
from llmsim.scheduling.conformance.connectors import HANDOVER, OFFLOADING
from llmsim.scheduling.conformance.vllm.installed import engine_options, runs_v2
from llmsim.scheduling.conformance.vllm.live import engine_profile_of
from llmsim.scheduling.conformance.vllm.platform import write_model
from llmsim.scheduling.conformance.vllm.request import LiveRequest

_ENTRY_POINTS = """[vllm.platform_plugins]
llmsim = llmsim.emulation.in_engine.plugin:platform

[vllm.general_plugins]
llmsim_clock = llmsim.emulation.in_engine.plugin:general
"""
_FLAGS = {"policy": "scheduling-policy", "num_gpu_blocks": "num-gpu-blocks-override"}
"""Flags of vLLM whose names are not those of `engine_options`."""


_CONNECTORS = {
    HANDOVER: ("VirtualConnector", "llmsim.emulation.in_engine.connector"),
    OFFLOADING: ("SizedOffloading", "llmsim.scheduling.conformance.vllm.offloading"),
}
"""The class of a KV connector, and its module."""


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_chunks = msgspec.json.Decoder(_Chunk)


class Completions:
    """OpenAI's endpoint, with token ids in place of text."""

    path = "/v1/completions"

    def body(
        self, one: LiveRequest, model: str, *, prompt_alone: bool, rank: int | None = None
    ) -> dict[str, Any]:
        """The JSON of a request; the header names its rank."""
        tokens = 1 if prompt_alone else one.output_tokens
        end: dict[str, object] = {"max_tokens": tokens, "ignore_eos": True}
        if one.stops and not prompt_alone:
            end = {"stop_token_ids": [one.output(one.output_tokens - 1)], "ignore_eos": True}
        return (
            {"model": model, "prompt": one.prompt(), "stream": True}
            | {"return_token_ids": True, "temperature": 0}
            | ({"priority": one.priority} if one.priority else {})
            | end
        )

    def tokens(self, event: bytes) -> int:
        """How many tokens an event brings."""
        return token_ids_of(event)


class TokensWithImages:
    """vLLM's own endpoint for token ids, which takes encoder inputs by their places."""

    path = "/inference/v1/generate"

    def body(
        self, one: LiveRequest, model: str, *, prompt_alone: bool, rank: int | None = None
    ) -> dict[str, Any]:
        """The JSON of a request."""
        sampling: dict[str, Any] = {"temperature": 0, "max_tokens": one.output_tokens}
        if one.stops:
            last = one.output(one.output_tokens - 1)
            sampling = {"temperature": 0, "stop_token_ids": [last]}
        features = {
            "mm_hashes": {"image": [f"image-{content}" for _, _, content in one.images]},
            "mm_placeholders": {
                "image": [{"offset": at, "length": tokens} for at, tokens, _ in one.images]
            },
        }
        return (
            {"model": model, "token_ids": one.prompt(), "stream": True}
            | {"sampling_params": sampling | {"ignore_eos": True}}
            | ({"priority": one.priority} if one.priority else {})
            | ({"features": features} if one.images else {})
        )

    def tokens(self, event: bytes) -> int:
        """How many tokens an event brings."""
        return token_ids_of(event)


class VllmApi:
    """A stream tells its token ids where it is asked to; the name goes as a header."""

    def body(
        self, asked: dict[str, Any], path: str, name: str, *, paired: bool = False
    ) -> dict[str, Any]:
        """The JSON of a request that a client has sent to `path`."""
        return asked | {"return_token_ids": True} if asked.get("stream") else asked

    def tokens(self, event: bytes) -> int:
        """How many tokens an event brings."""
        return token_ids_of(event)


def token_ids_of(event: bytes) -> int:
    """How many token ids stand in an event of a streamed answer."""
    return sum(len(one.token_ids or ()) for one in _chunks.decode(event).choices)


class Vllm:
    """vLLM, through its plug-in points."""

    name, title, before_client = "vllm", "vLLM", ""
    openai = VllmApi()

    def options(self) -> list[str]:
        """There are none: vLLM's scheduler is the default."""
        return []

    def check(self, prepared: Prepared, engine_args: Sequence[str]) -> None:
        """What instances may be is asked by `engine_stages`."""

    def version(self, python: Path) -> str:
        """The version of vLLM that this interpreter has; InputError where it has none."""
        return installed_version(python, self.name, self.title, "VLLM=0.33.0")

    def release_options(self, version: str, server: EngineServer) -> list[str]:
        """How often ranks in lock-step agree, and the endpoint of `TokensWithImages`."""
        words = _endpoint_options(version, server)
        if server.lockstep is None:
            return words
        return words + _sync_options(version, server.lockstep.sync_interval)

    def endpoint(self, server: EngineServer) -> Endpoint:
        """OpenAI's, which knows no lengths of encoder inputs."""
        return Completions() if server.encoder is None else TokensWithImages()

    def ranks_requests(self, server: EngineServer) -> bool:
        """With `--scheduling-policy priority`."""
        return server.first.engine.scheduling_policy == "priority"

    def drafts_after(self, speculation: "_native.SpeculationConfig", items: list[list[Any]]) -> int:
        """By the number of sequences."""
        return drafts_by_sequences(speculation, items)

    def settings(self, server: EngineServer) -> dict[str, object]:
        """What the plug-in has to know beside the clock."""
        group = server.first
        return {
            "connector": server.connector,
            "encoder": server.encoder,
            "lockstep": server.lockstep is not None,
            "kv_tables": kv_tables_of(group),
            "device_name": group.info.hardware,
            "device_bytes": sum(size for _, size in group.ledger.lines if size > 0),
            "v2_runner": runs_v2(group.engine),
        }

    def program(self, name: str, python: Path) -> list[str]:
        """`vllm` is there where no such program is installed, too."""
        return vllm_command(python) if name == "vllm" else []

    def environment(
        self, server: EngineServer, settings: dict[str, object], folder: Path
    ) -> dict[str, str]:
        """The environment of vLLM's processes."""
        environment = engine_environment(settings, folder, _ENTRY_POINTS)
        return environment | {
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # the coordinator loads no plug-ins of its own
            "VLLM_PLUGINS": "llmsim,llmsim_clock",
            "VLLM_USE_V2_MODEL_RUNNER": str(int(runs_v2(server.first.engine))),
        }

    def command(self, python: Path, server: EngineServer, model: Path, port: int) -> list[str]:
        """The server takes text only where the folder `model` has a tokenizer."""
        group = server.first
        has_words = (model / "tokenizer.json").exists()
        longest = group.scheduler.kv.max_model_len  # type: ignore[union-attr]
        vocabulary = WORDS if has_words else VOCABULARY
        experts = group.model.num_experts if server.lockstep is not None else 0
        folder = write_model(model, longest, vocabulary, experts)
        drafter = write_model(_made(model / "drafter"), longest, vocabulary) if experts else folder
        words = [] if has_words else ["--skip-tokenizer-init"]
        words += [*_options(server, folder, drafter), "--host", "127.0.0.1", "--port", str(port)]
        return [*vllm_command(python), "serve", folder, *words]


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _endpoint_options(version: str, server: EngineServer) -> list[str]:
    """Releases before 0.30 always have the endpoint for token ids."""
    release = tuple(int(part) for part in version.split(".")[:2])
    return ["--enable-scale-out"] if server.encoder is not None and release >= (0, 30) else []


def _sync_options(version: str, interval: int) -> list[str]:
    """How many rounds lie between two agreements; InputError for a number that is not the one of a
    release without an option for it.
    """
    if "dp_sync_interval" in load_profile(engine_profile_of(version)).defaults:
        return ["--dp-sync-interval", str(interval)]
    if interval != OWN_DEFAULTS["dp_sync_interval"]:
        raise InputError(
            f"dp_sync_interval is {interval}, but the ranks of vLLM {version} agree every "
            f"{OWN_DEFAULTS['dp_sync_interval']} rounds; leave it out"
        )
    return []


def kv_tables_of(group: LoweredGroup) -> list[tuple[int, int]]:
    """What each table of blocks sees (`layer_spec`), and the tokens in its blocks; 0: the
    engine's.
    """
    assert group.scheduler is not None, "engine_stages looked"
    tables = group.scheduler.kv.tables
    sizes = tables.block_sizes or [0] * len(tables.windows)
    return list(zip(tables.windows, sizes, strict=True)) or [(0, 0)]


def vllm_command(python: Path) -> list[str]:
    """The words in place of `vllm`."""
    return [str(python), "-m", "vllm.entrypoints.cli.main"]


def _options(engine: EngineServer, model: str, drafter: str) -> list[str]:
    """The engine's options as flags; `drafter`: the folder of a dense model, as drafters are."""
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
    words += _adapter_words(engine, model)
    speculative = options.pop("speculative", None)
    if speculative is not None:
        own = {} if speculative["method"] == "ngram" else {"model": drafter}
        words += ["--speculative-config", json.dumps(speculative | own)]
    for name, value in options.items():
        flag = _FLAGS.get(name, name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def _adapter_words(server: EngineServer, model: str) -> list[str]:
    """What vLLM is told of adapters; their files are never read, and `model` stands for them."""
    engine = server.first.engine
    if engine.max_loras is None:
        return []
    words = ["--enable-lora"]
    for name in ("max_lora_rank", "max_cpu_loras"):
        value = getattr(engine, name)
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    words += ["--fully-sharded-loras"] if engine.fully_sharded_loras else []
    modules = [json.dumps({"name": name, "path": model}) for name in server.adapters]
    return [*words, "--lora-modules", *modules] if modules else words


def _transfer_config(connector: dict[str, Any]) -> dict[str, Any]:
    """Our half of a hand-over, or vLLM's own offloading with a pool of so many chunks."""
    name, module = _CONNECTORS[connector["kind"]]
    return {
        "kv_connector": name,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_connector_extra_config": connector["extra"],
    }
