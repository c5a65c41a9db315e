"""The least time of a step that gives a sequence its next token, from the compiled tables."""

from collections.abc import Callable

import numpy as np

from llmsim.config import Deployment
from llmsim.config.engine.args import EngineArgs
from llmsim.core import Int64
from llmsim.costs.source import AttentionCost, SplitAttention
from llmsim.lowering.parallel_layout import LoweredLockstep
from llmsim.lowering.types import LoweredDeployment, LoweredGroup

OF_EVERY_STEP = ("tokens", "sequences", "gathered")
"""Features of which a step that gives a token has at least one; of others it may have none."""


def least_step_ps(deployment: Deployment, lowered: LoweredDeployment) -> int:
    """The least time between two tokens of a sequence, ps, on any group that answers.

    A token needs every operator of a step, one behind the other, and none takes less than the least
    entry of its table. 0 where no such bound is known: with drafts, with what is kept outside of
    the devices, where every rank's nodes run in the engine, and behind an API server, which may
    send tokens together.
    """
    if lowered.layouts is not None:
        return 0
    least = _least_by_program(lowered)
    in_lockstep = {index: one for one in lowered.lockstep_groups for index in one.groups}
    return min(
        (
            _least_of(index, lowered, in_lockstep.get(index), least)
            for index, group in enumerate(deployment.groups)
            if group.pd_type != "prefill" and lowered.groups[index].scheduler is not None
        ),
        default=0,
    )


def _least_by_program(lowered: LoweredDeployment) -> Callable[[LoweredGroup], int]:
    """The least time of a group's operators; groups that share a program are looked at once."""
    known: dict[int, int] = {}
    contended = bool(lowered.contended)

    def least(group: LoweredGroup) -> int:
        key = id(group.program)
        if key not in known:
            known[key] = _operators_ps(group, contended=contended)
        return known[key]

    return least


def _least_of(
    index: int,
    lowered: LoweredDeployment,
    lockstep: LoweredLockstep | None,
    least: Callable[[LoweredGroup], int],
) -> int:
    """The least step of one group, with the FFN and the way to it where these are apart."""
    group = lowered.groups[index]
    if not _is_plain(group) or (lockstep is not None and _runs_in_engine(lockstep)):
        return 0
    if lockstep is None or lockstep.afd is None:
        return least(group)
    ffns = lockstep.groups[lockstep.attention_members :]
    on_ffn = min(least(lowered.groups[ffn]) for ffn in ffns)
    return least(group) + on_ffn + lockstep.afd.least_m2n_ps()


def _is_plain(group: LoweredGroup) -> bool:
    """Whether steps of the group are its operators alone, each of which gives one token that leaves
    at once.
    """
    beside = (group.draft, group.offload, group.expanded)
    engine = group.engine
    return all(one is None for one in (*beside, engine.speculation, engine.endpoint))


def _runs_in_engine(lockstep: LoweredLockstep) -> bool:
    return lockstep.exact or lockstep.expanded is not None


def _operators_ps(group: LoweredGroup, *, contended: bool) -> int:
    """The least time of all operators of a step. Collectives on links that others use last as the
    network says, which their tables do not bound; nor do tables bound sampled times.
    """
    attention, tables = 0, dict[str, Int64]()
    for placed in group.placed:
        cost = placed.cost
        if isinstance(cost, AttentionCost):
            attention += placed.repeat * _attention_ps(cost, group.engine)
        elif cost.sampled is None and not (contended and cost.collective):
            ps = placed.repeat * cost.ps
            tables[cost.feature] = tables[cost.feature] + ps if cost.feature in tables else ps
    return attention + sum(_table_ps(feature, ps) for feature, ps in tables.items())


def _table_ps(feature: str, ps: Int64) -> int:
    """The least entry that a step may read; all operators over a feature read the same row."""
    entries = ps[1:] if feature in OF_EVERY_STEP else ps
    return int(entries.min()) if len(entries) else 0


def _attention_ps(cost: AttentionCost, engine: EngineArgs) -> int:
    """The least time of one layer's attention: of a decode, or of a prompt that is computed again.

    0 where prompts and decodes share one table, whose parts are taken off each other.
    """
    if not isinstance(cost, SplitAttention) or cost.skew_ps_per_token_q20 < 0:
        return 0
    grid = cost.grid
    prompts = (
        [grid.prefill_ps] if grid.on_latents is None else [grid.prefill_ps, grid.on_latents.ps]
    )
    tokens = engine.max_num_batched_tokens
    decode = _grid_ps(grid.decode_ps, grid.n_axis, engine.max_num_seqs)
    return min(decode, *(_grid_ps(ps, grid.q_axis, tokens) for ps in prompts))


def _grid_ps(ps: Int64, counts: Int64, most: int) -> int:
    """The least time of at least one row, for any context.

    Between points a table is interpolated, so that no time is below all of them. Behind the last
    context it is continued: without bound where it falls there, or where it has too few rows.
    """
    falls = ps.shape[1] > 1 and bool((ps[:, -1] < ps[:, -2]).any())
    if falls or counts[-1] < most:
        return 0
    first = max(0, int(np.searchsorted(counts, 1, side="right")) - 1)
    return int(ps[first:].min())
