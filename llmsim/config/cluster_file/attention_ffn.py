"""Attention and FFN laid out apart, after Frontier (section 3.2): (tp, dp) of the attention, (tp,
ep) of the FFN.

Both span the same devices: `attn_tp_size` x `attn_dp_size` = `ffn_tp_size` x `ffn_ep_size`. Each
data-parallel rank of the attention is an engine with a scheduler and a KV cache of its own, so that
an instance becomes as many groups. On a dense model `ffn_ep_size` counts copies of the FFN. What is
left out is inferred from `num_npus` and the product rule.
"""

from typing import TYPE_CHECKING

from llmsim.config.constraints import broken_rule

if TYPE_CHECKING:
    from llmsim.config.cluster_file.dialect import LayoutKeys, ParallelLayout

NAMES = ("attn_tp_size", "attn_dp_size", "ffn_tp_size", "ffn_ep_size")
OTHERS = ("tp_size", "ep_size", "dp_group", "npu_num", "npu_group")


def has_two_domains(keys: "LayoutKeys") -> bool:
    """Whether an instance says anything about one of the two alone."""
    return any(getattr(keys, name) is not None for name in NAMES)


def two_domains(keys: "LayoutKeys") -> "ParallelLayout":
    """The layout of each of the instance's groups; raises a broken rule where the keys
    contradict.
    """
    from llmsim.config.cluster_file.dialect import ParallelLayout

    first = next(name for name in NAMES if getattr(keys, name) is not None)
    for name in OTHERS:
        if getattr(keys, name) is not None:
            raise broken_rule(
                name,
                f"is given together with {first}, which says the same of attention and FFN apart",
            )
    pp, pcp = keys.pp_size or 1, keys.prefill_context_parallel_size or 1
    tp, dp = _attention(keys, pp * pcp)
    ffn_tp, ffn_ep = _ffn(keys, tp * pcp, dp)
    return ParallelLayout(tp * pp * pcp, tp, pp, ffn_ep, pcp, dp, ffn_tp)


def _attention(keys: "LayoutKeys", others: int) -> tuple[int, int]:
    tp, dp, devices = keys.attn_tp_size, keys.attn_dp_size, keys.num_npus
    if devices is None:
        return tp or 1, dp or 1
    stage, rest = divmod(devices, others)
    known = tp or dp or 1
    if rest or stage % known:
        name = "attn_tp_size" if tp else "attn_dp_size"
        raise broken_rule(
            "num_npus", f"is {devices}; {name} {known} x {others} of the other sizes must divide it"
        )
    tp, dp = tp or stage // (dp or 1), dp or stage // (tp or stage)
    if tp * dp != stage:
        raise broken_rule(
            "num_npus",
            f"is {devices}; it must be attn_tp_size x attn_dp_size x pp_size x "
            f"prefill_context_parallel_size = {tp * dp * others}",
        )
    return tp, dp


def _ffn(keys: "LayoutKeys", tp: int, dp: int) -> tuple[int | None, int | None]:
    """(None, None) where nothing is said: the model decides, as without these keys."""
    cut, spread, devices = keys.ffn_tp_size, keys.ffn_ep_size, tp * dp
    if cut is None and spread is None:
        return None, None
    for name, size in (("ffn_tp_size", cut), ("ffn_ep_size", spread)):
        if size is not None and devices % size:
            raise broken_rule(
                name,
                f"is {size}; it must divide attn_tp_size x attn_dp_size = {tp} x {dp} = {devices}",
            )
    cut, spread = cut or devices // (spread or 1), spread or devices // (cut or 1)
    if cut * spread != devices:
        raise broken_rule(
            "ffn_tp_size",
            f"x ffn_ep_size = {cut} x {spread} = {cut * spread}, but attn_tp_size x attn_dp_size = "
            f"{tp} x {dp} = {devices}; attention and FFN must span the same devices",
        )
    return cut, spread
