"""SGLang's server as an emulation starts it and talks to it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmsim import _native
from llmsim.api.preparation.prepare import Prepared
from llmsim.config.engine.schedulers import SGLANG
from llmsim.config.errors import NotYetError
from llmsim.emulation.engines.engine import Endpoint
from llmsim.emulation.engines.installed import installed_version
from llmsim.emulation.engines.sglang_api import Generate, SglangApi
from llmsim.emulation.engines.sglang_flags import (
    ALGORITHMS,
    TOKENS_ALONE,
    check_words,
    server_flags,
)
from llmsim.emulation.servers.of_instances import EngineServer
from llmsim.emulation.servers.server import engine_environment
from llmsim.emulation.words import WORDS
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.scheduling.conformance.sglang.platform import TOKEN_IDS, write_model

RELEASES = ("0.5.23",)
"""Releases whose classes the plug-in wraps."""
_ENTRY_POINTS = """[sglang.srt.plugins]
llmsim = llmsim.emulation.in_engine.sglang.plugin:general
"""
_BEFORE_IMPORTS = """from llmsim.emulation.in_engine.sglang.stand_ins import install

install()
"""
"""Python runs a module `sitecustomize` before a program."""
_BEFORE_CLIENT = """from llmsim.emulation.in_engine.sglang.stand_ins import install_for_client

install_for_client()
"""


class Sglang:
    """SGLang, through its plug-ins and a module that Python runs before each of its processes."""

    name, title, before_client = "sglang", "SGLang", _BEFORE_CLIENT
    openai = SglangApi()

    def options(self) -> list[str]:
        """The scheduler is SGLang's."""
        return ["--scheduler", SGLANG]

    def check(self, prepared: Prepared, engine_args: Sequence[str]) -> None:
        """Instances that SGLang runs as the simulation does, and no option of the server that
        contradicts.
        """
        lowered = prepared.lowered
        tiers = prepared.simulation.tiers is not None or bool(lowered.kv_offloading)
        _refuse(tiers, "KV tiers")
        for group in lowered.groups:
            _check_group(group)
            check_words(group, engine_args, _ranks_of(group, lowered))
        for met in lowered.contended:
            _check_meeting(lowered.groups[met.groups[0]])
        pools = {one.scheduler is not None and _keeps_states(one) for one in lowered.groups}
        _refuse(len(pools) > 1, "layers with states and a prefix cache at one pd_type alone")
        _refuse(
            len(lowered.groups) > 1 and prepared.simulation.router.name == "VLLM_DP",
            "several instances behind the router VLLM_DP",
        )

    def version(self, python: Path) -> str:
        """The version of SGLang that this interpreter has; InputError where it has none."""
        return installed_version(python, self.name, self.title, "SGLANG=0.5.23")

    def release_options(self, version: str, server: EngineServer) -> list[str]:
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
        longest = server.first.scheduler.kv.max_model_len
        return Generate(
            longest, ranks_requests=self.ranks_requests(server), hands_over=_hands_over(server)
        )

    def ranks_requests(self, server: EngineServer) -> bool:
        """With `sglang_priority_scheduling`."""
        scheduler = server.first.scheduler
        assert scheduler is not None, "engine_stages looked"
        return bool(scheduler.parameters["priorities"])

    def drafts_after(self, speculation: "_native.SpeculationConfig", items: list[list[Any]]) -> int:
        """The drafter reads prompts in one pass, and drafts ahead of verifications."""
        has_prompts = any(drafts == 0 for _, _, _, drafts, *_ in items)
        return min(1, speculation.tokens) if has_prompts else speculation.tokens

    def settings(self, server: EngineServer) -> dict[str, object]:
        """What the plug-in has to know beside the clock."""
        group = server.first
        assert group.scheduler is not None, "engine_stages looked"
        speculation = group.engine.speculation
        return {
            "width": 1 if speculation is None else speculation.verified,
            "ranks": len(server.groups),
            "in_rounds": server.runs_rounds,
            "stages": group.layout.pp,
            "copies": copies_of(group),
            "keeps_states": _keeps_states(group),
            "hands_over": _hands_over(server),
        }

    def program(self, name: str, python: Path) -> list[str]:
        """There is none: its clients are modules of Python."""
        return []

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
            "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "false",
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "llmsim.scheduling.conformance.sglang.model",
            "SGLANG_PLUGINS": "llmsim",
            "SGLANG_USE_CPU_ENGINE": "1",
            "TMPDIR": str(folder),
        }

    def command(self, python: Path, server: EngineServer, model: Path, port: int) -> list[str]:
        """The server takes token ids, and answers with them; where the folder `model` has a
        tokenizer, it speaks its words.
        """
        group = server.first
        assert group.scheduler is not None, "engine_stages looked"
        has_words = (model / "tokenizer.json").exists()
        vocabulary = WORDS if has_words else TOKEN_IDS
        scheduler = group.scheduler
        folder = write_model(
            model,
            scheduler.kv.max_model_len,
            scheduler.window_pool.window,
            scheduler.state_pool.prompt_interval if scheduler.state_pool.slots > 0 else 0,
            vocabulary,
        )
        words = ["--host", "127.0.0.1", "--port", str(port)]
        words += [] if has_words else TOKENS_ALONE
        return [
            *[str(python), "-m", "sglang.launch_server", "--model-path", folder],
            *server_flags(group, folder, len(server.groups)),
            *words,
        ]


def _ranks_of(group: LoweredGroup, lowered: LoweredDeployment) -> int:
    """Of its server."""
    ranks = [one.groups for one in lowered.lockstep_groups if group.info.index in one.groups]
    return len(ranks[0]) if ranks else 1


def _hands_over(server: EngineServer) -> bool:
    """It is a prefill or a decode server."""
    return server.first.native.role != _native.Role.BOTH


def _keeps_states(group: LoweredGroup) -> bool:
    """It has a pool of them, beside its prefix cache."""
    assert group.scheduler is not None, "the caller looked"
    return group.scheduler.state_pool.slots > 0


def copies_of(group: LoweredGroup) -> dict[str, int] | None:
    """What copies to host memory and back take, each and for each token; None: there are none."""
    assert group.scheduler is not None, "the caller looked"
    cache = group.scheduler.host_cache
    if cache.pages == 0:
        return None
    return {
        "latency_ps": cache.copy_latency_ps,
        "write_ps": cache.write_ps_per_token,
        "load_ps": cache.load_ps_per_token,
    }


def _check_group(group: LoweredGroup) -> None:
    """NotYetError for what an instance may have that is not emulated."""
    engine, scheduler = group.engine, group.scheduler
    if scheduler is None:
        _refuse(True, "an instance that gets no requests")
        return
    _refuse(engine.scheduler != SGLANG, f"--scheduler {engine.scheduler}")
    _check_drafts(group)
    _refuse(engine.scheduling_policy != "fcfs", "--scheduling-policy")
    _refuse(scheduler.decode_only, "--skip-prefill")
    _refuse(scheduler.host_cache.storage.prefetch_threshold > 0, "hicache_storage_backend")
    has_stages, has_states = group.layout.pp > 1, _keeps_states(group)
    decodes = group.native.role == _native.Role.DECODE
    if scheduler.host_cache.pages > 0:
        has_windows = scheduler.window_pool.window > 0
        _refuse(has_windows or has_states, "HiCache of layers with windows or states")
        _refuse(has_stages, "HiCache of pipeline stages")
        _refuse(decodes, 'HiCache of instances with the pd_type "decode"')


def _check_meeting(group: LoweredGroup) -> None:
    """NotYetError for what steps may not do whose ends are known when their transfers land."""
    scheduler = group.scheduler
    beside = "of steps that share links with KV on its way"
    _refuse(group.engine.speculation is not None, f"speculative_config {beside}")
    _refuse(scheduler is not None and scheduler.host_cache.pages > 0, f"HiCache {beside}")


def _check_drafts(group: LoweredGroup) -> None:
    speculation = group.engine.speculation
    if speculation is None:
        return
    method = speculation.method
    _refuse(group.layout.pp > 1, "speculative_config on pipeline stages")
    _refuse(method not in ALGORITHMS, f"speculative_config of {method}")


def _refuse(is_so: bool, what: str) -> None:
    if is_so:
        raise NotYetError(
            f"{what}: `llmsim emulate sglang` does not run this; "
            "`llmsim run` simulates the cluster file as it is"
        )
