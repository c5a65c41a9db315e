"""Whether SGLang's scheduler forms a step while the one before it runs."""

from dataclasses import replace

from llmsim.config import Group

SGLANG = "sglang"
_OVERLAP = "sglang_overlap"


def with_overlap(group: Group, *, tiers: bool) -> Group:
    """The group without overlapped steps where its scheduler is the outline of SGLang's: with
    roles, pipeline stages, KV tiers, decodes alone, or another order of the queue.
    """
    engine = group.engine
    if engine.scheduler != SGLANG:
        return group
    outlined = (
        group.pd_type is not None
        or group.pp > 1
        or tiers
        or engine.skip_prefill
        or engine.scheduling_policy != "fcfs"
    )
    if not outlined:
        return group
    parameters = dict(engine.scheduler_parameters) | {_OVERLAP: 0}
    return replace(group, engine=replace(engine, scheduler_parameters=tuple(parameters.items())))


def overlaps(group: Group) -> bool:
    """Whether two steps of SGLang's scheduler may be in flight."""
    parameters = dict(group.engine.scheduler_parameters)
    return group.engine.scheduler == SGLANG and parameters[_OVERLAP] == 1
