"""Which servers of an engine stand for the instances of a cluster file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmsim import _native
from llmsim.api.preparation.prepare import Prepared
from llmsim.config.engine.scheduler_kinds import SGLANG
from llmsim.config.errors import NotYetError
from llmsim.emulation.servers.doors import CHOICES
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.lowering.parallel_layout import LoweredLockstep
from llmsim.routing import RouterSpec, kept_sessions

_BALANCER = RouterSpec("VLLM_DP", "VLLM_DP")
_ROUTERS = ("--request-routing-policy", "--decode-routing-policy")
"""The options of the routers of prompts and of answers."""


@dataclass(frozen=True)
class EngineServer:
    """One server: its groups are its data-parallel engines, which are alike."""

    groups: tuple[LoweredGroup, ...]
    lockstep: LoweredLockstep | None = None
    """How its ranks run in lock-step; None: each is on its own."""

    @property
    def first(self) -> LoweredGroup:
        """What holds for all of them."""
        return self.groups[0]

    @property
    def connector(self) -> dict[str, bool] | None:
        """What its KV connector is for; None: it has none."""
        config, role = self.first.scheduler, self.first.native.role
        if role == _native.Role.BOTH or config is None:
            return None
        return {
            "remote": role == _native.Role.DECODE,
            "keeps_finished": role == _native.Role.PREFILL,
            "all_but_last": bool(config.prefill_all_but_last_token),
        }


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
        return (_lockstep(prepared),)
    if any(role != _native.Role.BOTH for role in roles):
        return _prefill_and_decode(prepared)
    if len(roles) > 1 and prepared.simulation.router.name in CHOICES:
        _check_several(prepared)
        return (_stage(_ROUTERS[0], prepared.simulation.router, lowered.groups),)
    if len(roles) > 1:
        _check_ranks(prepared)
    return (EngineStage((EngineServer(lowered.groups),)),)


def pushes_kv(lowered: LoweredDeployment) -> bool:
    """Whether prefill instances push KV, so that both sides get a request at once."""
    return lowered.kv_transfers is not None and lowered.kv_transfers.push


def _check_groups(lowered: LoweredDeployment, *, tiers: bool) -> None:
    configs = [group.scheduler for group in lowered.groups]
    for is_so, what, remedy in (
        (None in configs, "an instance that gets no requests", ""),
        (lowered.layouts is not None, "layouts", "give one layout"),
        (bool(lowered.contended), "collectives that share links between instances", ""),
        (
            any(group.offload is not None for group in lowered.groups),
            "weights or attention in host memory",
            "leave offloading of weights and operators out",
        ),
        (
            bool(lowered.kv_offloading),
            "--kv-offloading-size",
            "leave it out, or run vLLM's own offloading connector in llmsim run --scheduler vllm",
        ),
        (tiers, "KV tiers (--prefix-storage)", "leave --prefix-storage out"),
    ):
        _refuse_alone(is_so, what, remedy)
    for group in lowered.groups:
        _check_speculation(group)


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
        (
            group.native.role != _native.Role.BOTH,
            "speculative_config of instances with a pd_type",
            "remove one of them",
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
    is_balancer = router.name == _BALANCER.name and not router.options
    _check_several(prepared)
    for is_so, what in (
        (not is_balancer, f"several instances behind the router {router.text}"),
        (any(_engine(one) != _engine(groups[0]) for one in groups), "instances that differ"),
    ):
        _refuse(is_so, what)
    _check_endpoint(groups)


def _lockstep(prepared: Prepared) -> EngineStage:
    """One server, whose ranks share their experts; requests say which of them is theirs."""
    lowered, router = prepared.lowered, prepared.simulation.router
    ranks, groups = lowered.lockstep_groups[0], lowered.groups
    for is_so, what in (
        (len(ranks.groups) < len(groups), "ranks in lock-step beside other instances"),
        (any(one.native.role != _native.Role.BOTH for one in groups), "ranks in lock-step by role"),
        (not groups[0].model.num_experts, "ranks in lock-step of a dense model"),
        (
            any(one.engine.speculation is not None for one in groups),
            "speculative_config of ranks in lock-step",
        ),
    ):
        _refuse(is_so, what)
    _check_several(prepared)
    _check_choice(_ROUTERS[0], router)
    _check_endpoint(groups)
    return EngineStage((EngineServer(groups, ranks),), router.name)


def _check_several(prepared: Prepared) -> None:
    """Requests go to several instances, each on its own."""
    kept = prepared.simulation.session_affinity and kept_sessions(prepared.workload) is not None
    _refuse(len(prepared.lowered.models) > 1, "several models")
    _refuse(kept, "sessions with hidden rounds on several instances")


def _engine(group: LoweredGroup) -> tuple[Any, ...]:
    assert group.scheduler is not None, "the caller looked"
    return group.engine, group.layout, group.program, group.scheduler.kv.num_blocks


def _prefill_and_decode(prepared: Prepared) -> tuple[EngineStage, ...]:
    """A server for each instance."""
    lowered, options = prepared.lowered, prepared.simulation
    transfers = lowered.kv_transfers
    assert transfers is not None, "groups with roles hand KV over"
    pushes = all(one.engine.scheduler == SGLANG for one in lowered.groups)
    check = _check_push if pushes else _check_pull
    check(transfers)
    tables = [one.scheduler.kv.tables.windows for one in lowered.groups if one.scheduler]
    _refuse_alone(
        any(len(one) > 1 for one in tables),
        "layers of several kinds, with windows or states, on instances with a pd_type",
        "remove the pd_type",
    )
    roles = [group.native.role for group in lowered.groups]
    _refuse(_native.Role.BOTH in roles, "instances with a role beside others without")
    sides = [
        [one for one in lowered.groups if one.native.role == role]
        for role in (_native.Role.PREFILL, _native.Role.DECODE)
    ]
    if any(len(side) > 1 for side in sides):
        _check_several(prepared)
    routers = (options.router, options.decode_router)
    return tuple(map(_stage, _ROUTERS, routers, sides))


def _check_pull(transfers: "_native.KvTransferConfig") -> None:
    """As between vLLM's servers."""
    _refuse_alone(
        transfers.push,
        "KV that is pushed (--kv-transfer-mode push, --kv-transfer layerwise)",
        "add --kv-transfer whole --kv-transfer-mode pull",
    )


def _check_push(transfers: "_native.KvTransferConfig") -> None:
    """As between SGLang's servers."""
    for is_so, what in (
        (not transfers.push, "KV that SGLang's servers pull (--kv-transfer-mode pull)"),
        (transfers.layerwise, "KV that SGLang's servers push by layer (--kv-transfer layerwise)"),
    ):
        _refuse_alone(is_so, what, "add --kv-transfer whole --kv-transfer-mode push")


def _stage(option: str, router: RouterSpec, groups: Sequence[LoweredGroup]) -> EngineStage:
    """A server for each group; where there are several, by a router that asks no engine."""
    if len(groups) > 1:
        contexts = {one.scheduler.kv.max_model_len for one in groups if one.scheduler is not None}
        _refuse(len(contexts) > 1, "instances of one role with different context lengths")
        _check_choice(option, router)
    return EngineStage(tuple(EngineServer((group,)) for group in groups), router.name)


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
