"""Who hands KV over to whom in a deployment, and what, as the core's hand-over wants it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.engine.scheduler_kinds import SGLANG, VLLM
from llmsim.config.errors import InputError, NotYetError
from llmsim.lowering.kv.resharding import (
    Share,
    draft_shares,
    hands_over_states,
    kept_tokens,
    kv_shares,
    of_several_kinds,
    pieces_of_block,
    prefill_all_but_last_token,
)
from llmsim.lowering.scheduler import is_outlined

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

ROLES = {None: _native.Role.BOTH, "prefill": _native.Role.PREFILL, "decode": _native.Role.DECODE}

_PIECES = {"whole": "whole prompts", "chunked": "by chunks", "layerwise": "layer by layer"}
"""What moves at once, for the notes."""


def kv_transfer_config(
    deployment: Deployment, lowered: Sequence["LoweredGroup"], kv_places: list[list[int]]
) -> "_native.KvTransferConfig":
    """Routes between all prefill and decode groups of a model; `kv_places` by group and rank, on
    the network.

    Raises InputError where the KV of the two sides differs in its element type, or, of a model
    whose layers do not all keep every token, in its blocks.
    """
    assert deployment.disaggregation is not None
    how = deployment.disaggregation
    config = _native.KvTransferConfig(how.push, how.layerwise, kv_places, how.chunked)
    tables: dict[tuple[object, ...], int] = {}
    alike: dict[tuple[int, int], int] = {}
    """The table of two groups, by what their KV depends on."""
    numbers = _kinds(lowered)
    targets = [group for group in deployment.groups if group.pd_type == "decode"]
    for source in deployment.groups:
        if source.pd_type != "prefill":
            continue
        for target in targets:
            if source.model_name != target.model_name:
                continue
            pair = numbers[source.index], numbers[target.index]
            if pair not in alike:
                a, b = lowered[source.index], lowered[target.index]
                _check(deployment, source, target, a, b)
                block_size = b.engine.block_size
                drafts = tuple(
                    None if one.draft is None else (one.draft.model, one.draft.layout)
                    for one in (a, b)
                )
                posting = _posting(b)
                kv = (a.dtypes.kv, a.layout, b.layout, block_size, drafts)
                kind = (source.model_name, *kv, posting)
                if kind not in tables:
                    tables[kind] = config.add_table(
                        list(shares_of(a, b)),
                        block_size,
                        prefill_all_but_last_token(a.model, a.engine.scheduler),
                        posting,
                    )
                alike[pair] = tables[kind]
            config.add_route(source.index, target.index, alike[pair])
    return config


def _kinds(lowered: Sequence["LoweredGroup"]) -> list[int]:
    """A number of each group, equal where all is equal that its KV depends on."""
    numbers: dict[tuple[object, ...], int] = {}
    found = []
    for one in lowered:
        draft = None if one.draft is None else (one.draft.model.name, one.draft.layout)
        engine = one.engine.scheduler, _posting(one)
        kv = (one.dtypes, one.layout, one.engine.block_size, engine, draft)
        found.append(numbers.setdefault((one.model.name, one.model.source, *kv), len(numbers)))
    return found


def _posting(group: "LoweredGroup") -> tuple[int, int]:
    """What the host of a worker takes to post reads of KV: for each rank that it reads from, and
    for each block of a layer, in ps.
    """
    engine, pieces = group.engine, pieces_of_block(group.model)
    return engine.kv_read_ps, pieces * engine.kv_descriptor_ps


def shares_of(source: "LoweredGroup", target: "LoweredGroup") -> tuple[Share, ...]:
    """What ranks of one group need of those of another one: of the model, and of the drafter's own
    layers, which come behind it.
    """
    shares = kv_shares(
        source.model, source.dtypes, source.layout, target.layout, target.engine.block_size
    )
    if source.draft is None or target.draft is None:
        return shares
    return (*shares, *draft_shares(source, target))


def _check(
    deployment: Deployment, source: Group, target: Group, a: "LoweredGroup", b: "LoweredGroup"
) -> None:
    where = f"{deployment.cluster_path}: {source.field_path} and {target.field_path}"
    if a.dtypes.kv != b.dtypes.kv:
        raise InputError(
            f"{where} hand over KV, but kv_cache_dtype is {a.dtypes.kv} in the first and "
            f"{b.dtypes.kv} in the second; give both the same"
        )
    drafters = tuple(None if one.draft is None else one.draft.model.name for one in (a, b))
    if drafters[0] != drafters[1]:
        raise InputError(
            f"{where} hand over KV, but drafts come from {drafters[0] or 'no model'} in the first "
            f"and from {drafters[1] or 'no model'} in the second, whose layers keep KV, too; give "
            "both the same speculative_config, as vLLM's connector needs it"
        )
    if hands_over_states(a.model) and not (_takes_states(a) and _takes_states(b)):
        raise NotYetError(
            f"{where} hand over KV of {source.model_name}, whose linear attention keeps states, "
            f"with the scheduler {a.engine.scheduler}: that does not run in this version; say "
            "vllm_v1, or sglang without stages, drafts and KV tiers"
        )
    if of_several_kinds(a.model) and a.engine.block_size != b.engine.block_size:
        raise InputError(
            f"{where} hand over KV of {source.model_name}, whose layers do not all keep every "
            f"token, but block_size is {a.engine.block_size} in the first and "
            f"{b.engine.block_size} in the second; give both the same, which vLLM's connector "
            "needs for such models"
        )


def _takes_states(group: "LoweredGroup") -> bool:
    """Whether the group's scheduler knows of states that are handed over; SGLang's outline does
    not.
    """
    scheduler = group.engine.scheduler
    outlined = group.scheduler is not None and is_outlined(group.engine, group.scheduler)
    return scheduler == VLLM or (scheduler == SGLANG and not outlined)


def transfer_notes(deployment: Deployment, lowered: Sequence["LoweredGroup"]) -> tuple[str, ...]:
    """How the KV travels, once per run, for the notes of the summary."""
    if deployment.disaggregation is None:
        return ()
    how = deployment.disaggregation
    receivers = {
        group.model_name: low
        for group, low in zip(deployment.groups, lowered, strict=True)
        if group.pd_type == "decode"
    }
    listed = "; ".join(f"{name}: {_amount(low)}" for name, low in receivers.items())
    what = _PIECES[how.how]
    return (f"disaggregated: KV is {'pushed' if how.push else 'pulled'}, {what} ({listed})",)


def _amount(group: "LoweredGroup") -> str:
    """What a decode group takes of a prompt, on all its ranks."""
    model, block_size = group.model, group.engine.block_size
    per_token, state = [0, 0], 0
    for _, _, parts in shares_of(group, group):
        for layers, size, once, tail in parts:
            per_token[tail > 0] += size * len(layers)
            state += once * len(layers)
    kept = kept_tokens(model, block_size)
    texts = [f"{per_token[0]} B per token" if per_token[0] else ""]
    texts.append(f"{per_token[1]} B per token in the last {kept}" if per_token[1] else "")
    texts.append(f"{state} B of state" if state else "")
    return ", ".join(text for text in texts if text)
