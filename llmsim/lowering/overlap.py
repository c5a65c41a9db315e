"""How SGLang's scheduler forms steps: while the one before runs or not, and how large."""

from dataclasses import replace

from llmsim.config import Group
from llmsim.config.engine.args import EngineArgs
from llmsim.config.engine.schedulers import SGLANG
from llmsim.config.errors import NotYetError

_OVERLAP = "sglang_overlap"


def with_overlap(group: Group, *, tiers: bool) -> Group:
    """The group without overlapped steps where SGLang has none, which is with pipeline stages, and
    where its scheduler is the outline of SGLang's: with the role decode, KV tiers, decodes alone,
    or another order of the queue.
    """
    engine = group.engine
    if engine.scheduler != SGLANG:
        return group
    prefills = group.pd_type == "prefill" and engine.speculation is None
    outlined = (
        (group.pd_type is not None and not prefills)
        or tiers
        or engine.skip_prefill
        or engine.scheduling_policy != "fcfs"
    )
    if not outlined and group.pp == 1:
        return group
    if engine.speculation is not None:
        raise NotYetError(
            "speculative_config with the scheduler sglang does not run together with pd_type, "
            "pp_size, KV tiers, skip_prefill or another scheduling_policy than fcfs; remove one of "
            "them"
        )
    parameters = dict(engine.scheduler_parameters) | {_OVERLAP: 0}
    return replace(group, engine=replace(engine, scheduler_parameters=tuple(parameters.items())))


def overlaps(group: Group) -> bool:
    """Whether two steps of SGLang's scheduler may be in flight."""
    parameters = dict(group.engine.scheduler_parameters)
    return group.engine.scheduler == SGLANG and parameters[_OVERLAP] == 1


def most_tokens(engine: EngineArgs) -> int:
    """The most tokens of one step: SGLang's budget limits prompts, and not verifications."""
    if engine.scheduler != SGLANG or engine.speculation is None:
        return engine.max_num_batched_tokens
    widest = max(engine.speculation.verified, engine.speculation.branches)
    return max(engine.max_num_batched_tokens, engine.max_num_seqs * widest)
