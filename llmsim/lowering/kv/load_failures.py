"""Loads of KV that fail (`kv_load_failure_rate`): where they may be asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsim.config import Deployment, Group
from llmsim.config.engine.profile import load_profile
from llmsim.config.errors import InputError, NotYetError
from llmsim.lowering.kv.resharding import of_several_kinds
from llmsim.lowering.kv.tiers import RECALL, KvTierOptions
from llmsim.lowering.scheduler import ORDERS

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

OPTION = "kv_load_failure_rate"


def check_load_failures(
    deployment: Deployment, groups: Sequence["LoweredGroup"], tiers: KvTierOptions | None
) -> None:
    """Raises InputError where no KV is loaded or the engine would stop at a failed load, and
    NotYetError where it does not run in this version.
    """
    failing = [group for group in deployment.groups if group.engine.kv_load_failure_rate > 0]
    if not failing:
        return
    if tiers is None and all(group.pd_type != "decode" for group in failing):
        raise _refused(
            deployment,
            failing[0],
            "has an effect only where KV is loaded: give a decode instance or --prefix-storage, "
            "or remove it",
        )
    if tiers is not None and not RECALL[tiers.recall]:
        raise NotYetError(
            f"{deployment.cluster_path}: {failing[0].field_path}: {OPTION} with --kv-tier-recall "
            "sync does not run in this version; say async"
        )
    for group in failing:
        _check_engine(deployment, group, groups[group.index])


def _check_engine(deployment: Deployment, group: Group, lowered: "LoweredGroup") -> None:
    engine = group.engine
    if engine.scheduling_policy not in ORDERS:
        raise _refused(
            deployment,
            group,
            f"does not go with the ranking {engine.scheduling_policy}; choose scheduling_policy "
            "fcfs or priority, or remove it",
        )
    known = load_profile(engine.engine_profile).schedules_by("tells_failed_requests")
    if not known and group.pd_type == "decode" and of_several_kinds(lowered.model):
        raise _refused(
            deployment,
            group,
            f"is given for {group.model_name}, whose layers are of several kinds: "
            f"{engine.engine_profile} stops when their KV cannot be loaded; choose the "
            "engine_profile vllm-0.30 or a later one, or remove it",
        )


def _refused(deployment: Deployment, group: Group, reason: str) -> InputError:
    where = f"{deployment.cluster_path}: {group.field_path}"
    said_by = group.engine.origin[OPTION]
    return InputError(
        f"{where}: {OPTION} is {group.engine.kv_load_failure_rate} ({said_by}), which {reason}"
    )
