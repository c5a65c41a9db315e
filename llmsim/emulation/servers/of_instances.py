"""Which servers of an engine stand for the instances of a cluster file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from llmsim import _native
from llmsim.api.preparation.prepare import Prepared
from llmsim.config.engine.scheduler_kinds import SGLANG
from llmsim.config.errors import NotYetError
from llmsim.emulation.servers.doors import CHOICES
from llmsim.emulation.step_counts import adapters_of, images_of
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.lowering.network.contended.collectives import ContendedDomain
from llmsim.lowering.parallel_layout import LoweredLockstep
from llmsim.routing import RouterSpec, kept_sessions
from llmsim.scheduling.conformance.connectors import (
    HANDOVER,
    OFFLOADING,
    offloading_extra,
    offloading_options,
)

_BALANCER = "VLLM_DP"
_ROUTERS = ("--request-routing-policy", "--decode-routing-policy")
"""The options of the routers of prompts and of answers."""
_ROLES = (_native.Role.PREFILL, _native.Role.DECODE, _native.Role.BOTH)


@dataclass(frozen=True)
class EngineServer:
    """One server: its groups are its data-parallel engines, which are alike."""

    groups: tuple[LoweredGroup, ...]
    lockstep: LoweredLockstep | None = None
    """How its ranks run in lock-step; None: each is on its own."""
    contended: ContendedDomain | None = None
    """What its ranks' rounds move where they meet KV or others; None: they meet nobody."""
    balances: bool = False
    """Its own balancer chooses the rank of a request in lock-step; else requests name it."""
    adapters: tuple[str, ...] = ()
    """The LoRA adapters that it serves, in the order of their numbers; none: it has no slots."""
    largest_image: int = 0
    """Tokens of the largest encoder input; 0: nobody has any."""
    writes: str = ""
    """What its KV is written with: the ends of "prompts" or of "chunks"; empty: others read it."""

    @property
    def first(self) -> LoweredGroup:
        """What holds for all of them."""
        return self.groups[0]

    @property
    def is_alone_or_named(self) -> bool:
        """Whether requests have no rank of it to choose, or name theirs."""
        return len(self.groups) == 1 or (self.lockstep is not None and not self.balances)

    @property
    def runs_rounds(self) -> bool:
        """Its steps have numbers: when one ends is known when other ranks have joined it, and when
        its transfers have landed.
        """
        return self.lockstep is not None or self.contended is not None

    @property
    def encoder(self) -> dict[str, int] | None:
        """The budgets of its encoder; None: nobody has inputs of one."""
        config = self.first.scheduler
        if config is None or not self.largest_image:
            return None
        encoder = config.encoder
        if not encoder.step_tokens:  # of a release whose budgets are not modelled
            return None
        return {
            "step_tokens": max(encoder.step_tokens, self.largest_image),
            "cache_tokens": max(encoder.cache_tokens, self.largest_image),
            "whole_inputs": encoder.whole_inputs,
        }

    @property
    def connector(self) -> dict[str, Any] | None:
        """What its KV connector is for: the `kind`, and what vLLM is told of it
        (`kv_connector_extra_config`). None: it has none.
        """
        config, role = self.first.scheduler, self.first.native.role
        if config is None:
            return None
        if config.offloading.num_chunks > 0:
            extra = offloading_extra(offloading_options(config.offloading))
            return {"kind": OFFLOADING, "extra": extra}
        if role == _native.Role.BOTH:
            return None
        extra = {
            "remote": role == _native.Role.DECODE,
            "keeps_finished": role == _native.Role.PREFILL,
            "all_but_last": bool(config.prefill_all_but_last_token),
            "writes": self.writes if role == _native.Role.PREFILL else "",
        }
        return {"kind": HANDOVER, "extra": extra}


@dataclass(frozen=True)
class EngineStage:
    """The servers, or the ranks of one in lock-step, of which a request passes one, which the
    router chooses.
    """

    servers: tuple[EngineServer, ...]
    router: str = "RR"


def engine_stages(prepared: Prepared) -> tuple[EngineStage, ...]:
    """The servers, in the order in which a request passes them; NotYetError where there are none
    for what the cluster file and the options say.
    """
    lowered = prepared.lowered
    _check_groups(lowered, tiers=prepared.simulation.tiers is not None)
    roles = [group.native.role for group in lowered.groups]
    if lowered.lockstep_groups:
        return _lockstep(prepared, roles)
    images = [tokens for row in images_of(prepared.workload) for _, tokens, _ in row]
    adapters, largest = adapters_of(prepared.workload), max(images, default=0)
    return tuple(_serving(one, adapters, largest) for one in _own_engines(prepared, roles))


def _own_engines(prepared: Prepared, roles: Sequence["_native.Role"]) -> tuple[EngineStage, ...]:
    """The servers of engines that run on their own."""
    groups = prepared.lowered.groups
    if any(role != _native.Role.BOTH for role in roles):
        return _prefill_and_decode(prepared)
    if len(roles) > 1 and prepared.simulation.router.name in CHOICES:
        _check_several(prepared)
        servers = _servers_of(prepared.lowered, groups)
        return (_stage(_ROUTERS[0], prepared.simulation.router, servers),)
    if len(roles) > 1:
        _check_ranks(prepared)
    return (EngineStage((EngineServer(groups),)),)


def _serving(stage: EngineStage, adapters: tuple[str, ...], largest_image: int) -> EngineStage:
    """The servers with these adapters, as far as they have slots, and such encoder inputs."""
    servers = [
        replace(
            one,
            adapters=adapters if one.first.engine.max_loras is not None else (),
            largest_image=largest_image,
        )
        for one in stage.servers
    ]
    return replace(stage, servers=tuple(servers))


class Handover(Enum):
    """How KV comes from the servers that compute prompts to those that answer."""

    PULLED = "pulled"
    """The second server gets a request behind the first one, and reads."""
    WRITTEN = "written"
    """Both are chosen at once. The second server reserves memory, the first one is told, and writes
    into it (vLLM).
    """
    BOOTSTRAPPED = "bootstrapped"
    """The same, but both servers have the request at once, and tell each other (SGLang)."""


def handover_of(lowered: LoweredDeployment) -> Handover:
    """How KV moves between the servers of these instances."""
    if lowered.kv_transfers is None or not lowered.kv_transfers.push:
        return Handover.PULLED
    are_sglangs = all(one.engine.scheduler == SGLANG for one in lowered.groups)
    return Handover.BOOTSTRAPPED if are_sglangs else Handover.WRITTEN


def _check_groups(lowered: LoweredDeployment, *, tiers: bool) -> None:
    configs = [group.scheduler for group in lowered.groups]
    timed_on_network = _timed_on_network(lowered)
    for is_so, what, remedy in (
        (None in configs, "an instance that gets no requests", ""),
        (lowered.layouts is not None, "layouts", "give one layout"),
        (
            any(one.groups not in timed_on_network for one in lowered.contended),
            "collectives that share links between instances",
            "give instances whose collectives meet other transfers a node of their own",
        ),
        (
            any(group.offload is not None for group in lowered.groups),
            "weights or attention in host memory",
            "leave offloading of weights and operators out",
        ),
        (
            tiers,
            "KV tiers (--prefix-storage), which follow no engine's rules",
            "give --kv-offloading-size, by which vLLM itself keeps KV in host memory, in its place",
        ),
    ):
        _refuse_alone(is_so, what, remedy)
    for group in lowered.groups:
        _check_speculation(group)


def _timed_on_network(lowered: LoweredDeployment) -> list[tuple[int, ...]]:
    """Those whose steps are on the network over which servers send KV: SGLang's, and of vLLM's the
    ranks in lock-step.
    """
    if lowered.kv_transfers is None:
        return []
    if handover_of(lowered) is Handover.BOOTSTRAPPED:
        return [one.groups for one in lowered.contended]
    return [one.groups for one in lowered.lockstep_groups]


def _check_speculation(group: LoweredGroup) -> None:
    speculation = group.engine.speculation
    if speculation is None:
        return
    waits = not group.engine.async_scheduling
    for is_so, what, remedy in (
        (speculation.modules > 1, "num_nextn_predict_layers above 1", "leave it out"),
        (
            bool(speculation.tokens_by_sequences) and not waits,
            "num_speculative_tokens_per_batch_size with asynchronous scheduling",
            "add --no-async-scheduling",
        ),
        (
            group.layout.pp > 1 and waits,
            "speculative_config on pipeline stages without asynchronous scheduling",
            "add --async-scheduling",
        ),
    ):
        _refuse_alone(is_so, what, remedy)


def _check_endpoint(groups: Sequence[LoweredGroup]) -> None:
    """Engines behind one balancer have one API server, whose work is not that of each."""
    _refuse_alone(
        any(one.engine.endpoint is not None for one in groups),
        "--endpoint with data-parallel engines of one server",
        "leave it out, or choose among instances with --request-routing-policy RR",
    )


def _check_ranks(prepared: Prepared) -> None:
    """Groups beside each other are ranks of one server, whose balancer chooses among them."""
    groups, router = prepared.lowered.groups, prepared.simulation.router
    _check_several(prepared)
    for is_so, what in (
        (not _is_balancer(router), f"several instances behind the router {router.text}"),
        (any(_engine(one) != _engine(groups[0]) for one in groups), "instances that differ"),
    ):
        _refuse(is_so, what)
    _check_endpoint(groups)


def _lockstep(prepared: Prepared, roles: Sequence["_native.Role"]) -> tuple[EngineStage, ...]:
    """Servers whose ranks share their experts; requests say which of them is theirs."""
    lowered, router = prepared.lowered, prepared.simulation.router
    ranks, groups = lowered.lockstep_groups[0], lowered.groups
    by_role = any(role != _native.Role.BOTH for role in roles)
    are_sglangs = all(one.engine.scheduler == SGLANG for one in groups)
    members = {member for each in lowered.lockstep_groups for member in each.groups}
    for is_so, what in (
        (
            not by_role and len(ranks.groups) < len(groups),
            "ranks in lock-step beside other instances",
        ),
        (
            any(not groups[member].model.num_experts for member in members),
            "ranks in lock-step of a dense model",
        ),
        (bool(lowered.kv_offloading), "--kv-offloading-size of ranks in lock-step"),
        (groups[0].engine.max_loras is not None, "--max-loras of ranks in lock-step"),
        (any(images_of(prepared.workload)), "encoder_inputs of ranks in lock-step"),
        (
            are_sglangs and any(groups[one].engine.speculation is not None for one in members),
            "speculative_config of SGLang's ranks in lock-step",
        ),
    ):
        _refuse(is_so, what)
    _check_several(prepared)
    _check_endpoint(groups)
    if by_role:
        return _prefill_and_decode(prepared)
    server = EngineServer(groups, ranks)
    if _is_balancer(router) and not are_sglangs:
        return (EngineStage((replace(server, balances=True),)),)
    _check_choice(_ROUTERS[0], router)
    return (EngineStage((server,), router.name),)


def _check_several(prepared: Prepared) -> None:
    """Requests go to several instances, each on its own."""
    kept = prepared.simulation.session_affinity and kept_sessions(prepared.workload) is not None
    _refuse(len(prepared.lowered.models) > 1, "several models")
    _refuse(kept, "sessions with hidden rounds on several instances")


def _engine(group: LoweredGroup) -> tuple[Any, ...]:
    assert group.scheduler is not None, "the caller looked"
    return group.engine, group.layout, group.program, group.scheduler.kv.num_blocks


def _prefill_and_decode(prepared: Prepared) -> tuple[EngineStage, ...]:
    """A server for each instance, or for all ranks that run in lock-step."""
    groups, options = prepared.lowered.groups, prepared.simulation
    _check_hand_over(prepared.lowered)
    _refuse_alone(
        any(map(_has_several_tables, groups)),
        "layers of several kinds, with windows or states, on instances with a pd_type",
        "remove the pd_type",
    )
    prefills, decodes, others = (_with_role(role, groups) for role in _ROLES)
    _refuse(bool(others), "instances with a role beside others without")
    if len(prefills) > 1 or len(decodes) > 1:
        _check_several(prepared)
    routers = (options.router, options.decode_router)
    servers = [_servers_of(prepared.lowered, one) for one in (prefills, decodes)]
    return tuple(
        _balanced(option, router, own, prepared.lowered)
        if _is_balancer(router) and _ranks(own) > 1
        else _stage(option, router, own)
        for option, router, own in zip(_ROUTERS, routers, servers, strict=True)
    )


def _ranks(servers: Sequence[EngineServer]) -> int:
    return sum(len(one.groups) for one in servers)


def _balanced(
    option: str, router: RouterSpec, servers: Sequence[EngineServer], lowered: LoweredDeployment
) -> EngineStage:
    """One server with all engines of a role, which chooses when it gets a request."""
    groups = tuple(group for one in servers for group in one.groups)
    first = servers[0]
    is_one_server = len(servers) == 1 or all(one.lockstep is None for one in servers)
    are_sglangs = any(one.engine.scheduler == SGLANG for one in lowered.groups)
    for is_so, what in (
        (are_sglangs, f"SGLang's instances behind {option} {router.text}"),
        (not is_one_server, f"several dp_group of one pd_type behind {option} {router.text}"),
        (
            any(_engine(one) != _engine(groups[0]) for one in groups),
            f"instances of one pd_type that differ, behind {option} {router.text}",
        ),
    ):
        _refuse(is_so, what)
    _check_endpoint(groups)
    _refuse_alone(
        handover_of(lowered) is not Handover.PULLED,
        f"{option} {router.text} where KV is pushed, so that ranks are chosen before they get "
        "a request",
        "add --kv-transfer whole --kv-transfer-mode pull",
    )
    return EngineStage((replace(first, groups=groups, balances=first.lockstep is not None),))


def _writes(lowered: LoweredDeployment) -> str:
    """`EngineServer.writes` of all servers."""
    if handover_of(lowered) is not Handover.WRITTEN:
        return ""
    return "chunks" if lowered.kv_transfers.chunked else "prompts"  # type: ignore[union-attr]


def _servers_of(
    lowered: LoweredDeployment, groups: Sequence[LoweredGroup]
) -> tuple[EngineServer, ...]:
    """In the order of their first groups."""
    writes = _writes(lowered)
    ranks_of = {one.groups[0]: one for one in lowered.lockstep_groups}
    others = {member for one in lowered.lockstep_groups for member in one.groups[1:]}
    contended_of = {one.groups: one for one in lowered.contended}
    servers = []
    for group in groups:
        first = group.info.index
        ranks = ranks_of.get(first)
        if ranks is not None:
            members = tuple(lowered.groups[one] for one in ranks.groups)
            contended = contended_of.get(ranks.groups)
            servers.append(EngineServer(members, ranks, contended, writes=writes))
        elif first not in others:
            meets = contended_of.get((first,))
            servers.append(EngineServer((group,), contended=meets, writes=writes))
    return tuple(servers)


def _with_role(role: "_native.Role", groups: Sequence[LoweredGroup]) -> list[LoweredGroup]:
    return [one for one in groups if one.native.role == role]


def _has_several_tables(group: LoweredGroup) -> bool:
    """Of blocks: layers with windows or states have one of their own."""
    return group.scheduler is not None and len(group.scheduler.kv.tables.windows) > 1


def _check_hand_over(lowered: LoweredDeployment) -> None:
    """NotYetError for KV that moves otherwise than between the engine's servers."""
    assert lowered.kv_transfers is not None, "groups with roles hand KV over"
    are_sglangs = all(one.engine.scheduler == SGLANG for one in lowered.groups)
    check = _check_sglangs_push if are_sglangs else _check_layers
    check(lowered.kv_transfers)


def _check_layers(transfers: "_native.KvTransferConfig") -> None:
    """Between vLLM's servers, KV moves with the ends of steps."""
    _refuse_alone(
        transfers.layerwise,
        "KV that moves within a step (--kv-transfer layerwise)",
        "add --kv-transfer whole or chunked",
    )


def _check_sglangs_push(transfers: "_native.KvTransferConfig") -> None:
    """As between SGLang's servers."""
    for is_so, what in (
        (not transfers.push, "KV that SGLang's servers pull (--kv-transfer-mode pull)"),
        (transfers.layerwise, "KV that SGLang's servers push by layer (--kv-transfer layerwise)"),
        (not transfers.chunked, "KV that SGLang's servers push as a whole (--kv-transfer whole)"),
    ):
        _refuse_alone(is_so, what, "add --kv-transfer chunked --kv-transfer-mode push")


def _stage(option: str, router: RouterSpec, servers: Sequence[EngineServer]) -> EngineStage:
    """Where there is a choice, it is a router's that asks no engine."""
    groups = [group for one in servers for group in one.groups]
    if len(groups) > 1:
        contexts = {one.scheduler.kv.max_model_len for one in groups if one.scheduler is not None}
        _refuse(len(contexts) > 1, "instances of one role with different context lengths")
        _check_choice(option, router)
    return EngineStage(tuple(servers), router.name)


def _is_balancer(router: RouterSpec) -> bool:
    """vLLM's own, as its server runs it without options."""
    return router.name == _BALANCER and not router.options


def _check_choice(option: str, router: RouterSpec) -> None:
    if router.name not in CHOICES:
        raise NotYetError(
            f"{option} {router.text}: in front of several instances, `llmsim emulate` chooses by "
            f"{' or '.join(CHOICES)}, which ask no engine; {option} {CHOICES[0]} is one of them"
        )


def _refuse_alone(is_so: bool, what: str, remedy: str) -> None:
    """NotYetError for what is refused whatever the instances are."""
    if is_so:
        either = f"{remedy}; " if remedy else ""
        raise NotYetError(
            f"{what}: `llmsim emulate` does not run this; {either}"
            "`llmsim run` simulates the cluster file as it is"
        )


def _refuse(is_so: bool, what: str) -> None:
    if is_so:
        raise NotYetError(
            f"{what}: `llmsim emulate` runs one instance, several behind the router RR or LOR, "
            "equal ones behind VLLM_DP, the ranks of one mixture of experts, or prefill and decode "
            "instances; "
            "`llmsim run` simulates the cluster file as it is"
        )
