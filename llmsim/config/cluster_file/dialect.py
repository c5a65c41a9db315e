"""One parallel layout from either dialect of the cluster file, with what was left out inferred.

The older dialect says `npu_num` devices in `npu_group` pipeline stages, tensor-parallel inside each
stage. The newer one gives any subset of `num_npus` = `tp_size` x `pp_size`, `ep_size` and
`dp_group`. Rules: cluster_config/README.md. Keys of two domains (`attn_tp_size`, ...) are read by
two_domains.py.
"""

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.cluster_file.attention_ffn import (
    ONE_DOMAIN,
    has_two_domains,
    one_domain,
    two_domains,
)
from llmsim.config.constraints import broken_rule


class ParallelLayout(Struct, frozen=True):
    """How a serving group uses its devices: num_devices = tp * pp * pcp."""

    num_devices: int
    tp: int
    pp: int
    ep: int | None
    """Expert-parallel ranks (over the whole dp_group if there is one); None: not given, the model
    decides.
    """
    pcp: int = 1
    """Prefill context-parallel ranks."""
    replicas: int = 1
    """Serving groups of this layout that the instance consists of: data-parallel ranks of its
    attention.
    """
    ffn_tp: int | None = None
    """Ranks over which the FFN is cut, where attention and FFN are laid out apart."""


class LayoutKeys(Struct, frozen=True):
    """The layout keys of an instance as the file gives them; None where absent or null."""

    npu_num: int | None
    npu_group: int | None
    num_npus: int | None
    tp_size: int | None
    pp_size: int | None
    ep_size: int | None
    dp_group: str | None
    prefill_context_parallel_size: int | None = None
    attn_tp_size: int | None = None
    attn_dp_size: int | None = None
    ffn_tp_size: int | None = None
    ffn_ep_size: int | None = None
    pd_type: str | None = None


def infer_layout(keys: LayoutKeys) -> ParallelLayout:
    """The layout that the keys describe; raises a broken rule (`cluster_file.constraints`) where
    they contradict.
    """
    if keys.pd_type in ONE_DOMAIN:
        return one_domain(keys)
    if has_two_domains(keys):
        return two_domains(keys)
    pcp = keys.prefill_context_parallel_size or 1
    keys = _of_one_context_rank(keys, pcp)
    num_devices, tp, pp = _older_layout(keys) if _is_older(keys) else _newer_layout(keys)
    if keys.ep_size is not None and keys.dp_group is None:
        check_expert_ranks(keys.ep_size, 1, tp * pcp)
    return ParallelLayout(num_devices * pcp, tp, pp, keys.ep_size, pcp)


def _of_one_context_rank(keys: LayoutKeys, pcp: int) -> LayoutKeys:
    """The keys of the devices that work on one part of a prompt."""
    counts = {
        name: getattr(keys, name)
        for name in ("npu_num", "num_npus")
        if getattr(keys, name) is not None
    }
    for name, count in counts.items():
        if count % pcp:
            raise broken_rule(
                "prefill_context_parallel_size",
                f"is {pcp}; it must divide {name}, which is {count}",
            )
    return replace(keys, **{name: count // pcp for name, count in counts.items()})


def check_expert_ranks(ep: int, dp: int, tp: int) -> None:
    """ep is a total over the dp members; each holds ep / dp ranks, which must divide its tp devices
    per stage.
    """
    if ep % dp:
        raise broken_rule(
            "ep_size",
            f"is {ep}; it is a total over the {dp} members of the dp_group and must divide by {dp}",
        )
    local = ep // dp
    if local > tp or tp % local:
        where = f" (ep_size {ep} / {dp} members = {local})" if dp > 1 else ""
        raise broken_rule(
            "ep_size",
            f"is {ep}; expert ranks per instance{where} must divide tp_size, which is {tp}",
        )


def _is_older(keys: LayoutKeys) -> bool:
    older = [name for name in ("npu_num", "npu_group") if getattr(keys, name) is not None]
    newer = [name for name in ("num_npus", "tp_size", "pp_size") if getattr(keys, name) is not None]
    if older and newer:
        raise broken_rule(
            older[0],
            (
                f"is given together with {newer[0]}; use npu_num/npu_group or "
                "num_npus/tp_size/pp_size, not both"
            ),
        )
    return bool(older)


def _older_layout(keys: LayoutKeys) -> tuple[int, int, int]:
    stages = keys.npu_group or 1
    num_devices = keys.npu_num or stages
    if num_devices % stages:
        raise broken_rule(
            "npu_group", f"is {stages}; it must divide npu_num, which is {num_devices}"
        )
    return num_devices, num_devices // stages, stages


def _newer_layout(keys: LayoutKeys) -> tuple[int, int, int]:
    num_devices, tp, pp = keys.num_npus, keys.tp_size, keys.pp_size
    if num_devices is None:
        if tp is None:
            # The smallest layout that the expert ranks fit: they share one stage's devices.
            tp = keys.ep_size if keys.ep_size is not None and keys.dp_group is None else 1
        pp = pp or 1
        return tp * pp, tp, pp
    if tp is None:
        pp = pp or 1
        _require_product("pp_size", pp, num_devices)
        tp = num_devices // pp
    elif pp is None:
        _require_product("tp_size", tp, num_devices)
        pp = num_devices // tp
    if tp * pp != num_devices:
        raise broken_rule(
            "num_npus", f"is {num_devices}; it must be tp_size x pp_size = {tp} x {pp} = {tp * pp}"
        )
    return num_devices, tp, pp


def _require_product(name: str, part: int, num_devices: int) -> None:
    if num_devices % part:
        raise broken_rule(
            name,
            (
                f"is {part}; it must divide num_npus, which is {num_devices} (num_npus = tp_size x "
                "pp_size)"
            ),
        )
