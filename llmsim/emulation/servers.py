"""Which servers of an engine stand for the instances of a cluster file."""

from dataclasses import dataclass
from typing import Any

from llmsim import _native
from llmsim.api.prepare import Prepared
from llmsim.config.errors import NotYetError
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.routing import RouterSpec, kept_sessions

_BALANCER = RouterSpec("VLLM_DP", "VLLM_DP")


@dataclass(frozen=True)
class EngineServer:
    """One server: its groups are its data-parallel engines, which are alike."""

    groups: tuple[LoweredGroup, ...]

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


def engine_servers(prepared: Prepared) -> tuple[EngineServer, ...]:
    """The servers, in the order in which a request passes them; NotYetError where there are none
    for what the cluster file and the options say.
    """
    lowered = prepared.lowered
    _check_groups(
        lowered, tiers=prepared.simulation.tiers is not None or bool(lowered.kv_offloading)
    )
    roles = [group.native.role for group in lowered.groups]
    if len(roles) == 1 and roles[0] == _native.Role.BOTH:
        return (EngineServer(lowered.groups),)
    if all(role == _native.Role.BOTH for role in roles):
        _check_ranks(prepared)
        return (EngineServer(lowered.groups),)
    return _pair(lowered)


def _check_groups(lowered: LoweredDeployment, *, tiers: bool) -> None:
    configs = [group.scheduler for group in lowered.groups]
    windows = [list(one.kv.tables.windows) for one in configs if one is not None]
    for is_so, what in (
        (None in configs, "an instance that gets no requests"),
        (bool(lowered.lockstep_groups), "data-parallel ranks in lock-step"),
        (lowered.layouts is not None, "layouts"),
        (bool(lowered.contended), "collectives that share links between instances"),
        (any(group.offload is not None for group in lowered.groups), "offloading"),
        (tiers, "KV tiers"),
        (
            any(group.engine.speculation is not None for group in lowered.groups),
            "speculative decoding",
        ),
        (any(group.engine.endpoint is not None for group in lowered.groups), "--endpoint"),
        (any(one not in ([], [0]) for one in windows), "windows"),
    ):
        _refuse(is_so, what)


def _check_ranks(prepared: Prepared) -> None:
    """Groups beside each other are ranks of one server, whose balancer chooses among them."""
    groups, router = prepared.lowered.groups, prepared.simulation.router
    is_balancer = router.name == _BALANCER.name and not router.options
    kept = prepared.simulation.session_affinity and kept_sessions(prepared.workload) is not None
    for is_so, what in (
        (len(prepared.lowered.models) > 1, "several models"),
        (any(_engine(one) != _engine(groups[0]) for one in groups), "instances that differ"),
        (not is_balancer, f"several instances behind the router {router.text}"),
        (kept, "sessions with hidden rounds on several instances"),
    ):
        _refuse(is_so, what)


def _engine(group: LoweredGroup) -> tuple[Any, ...]:
    assert group.scheduler is not None, "the caller looked"
    return group.engine, group.layout, group.program, group.scheduler.kv.num_blocks


def _pair(lowered: LoweredDeployment) -> tuple[EngineServer, ...]:
    prefill = [one for one in lowered.groups if one.native.role == _native.Role.PREFILL]
    decode = [one for one in lowered.groups if one.native.role == _native.Role.DECODE]
    transfers = lowered.kv_transfers
    is_pair = len(prefill) == len(decode) == 1 and len(lowered.groups) == 2
    _refuse(not is_pair, "prefill and decode on more than one instance each")
    assert transfers is not None, "groups with roles hand KV over"
    _refuse(transfers.push, "KV that is pushed (--kv-transfer-mode push, --kv-transfer layerwise)")
    return EngineServer(tuple(prefill)), EngineServer(tuple(decode))


def _refuse(is_so: bool, what: str) -> None:
    if is_so:
        raise NotYetError(
            f"{what}: `llmsim emulate` runs one instance, equal instances behind the router "
            "VLLM_DP, or one prefill and one decode instance that pulls KV; `llmsim run` "
            "simulates the cluster file as it is"
        )
