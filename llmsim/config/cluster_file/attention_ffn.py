"""Attention and FFN laid out apart, after Frontier (section 3.2): (tp, dp) of the attention, (tp,
ep) of the FFN.

Both span the same devices: `attn_tp_size` x `attn_dp_size` = `ffn_tp_size` x `ffn_ep_size`. Each
data-parallel rank of the attention is an engine with a scheduler and a KV cache of its own, so that
an instance becomes as many groups. On a dense model `ffn_ep_size` counts copies of the FFN. What is
left out is inferred from `num_npus` and the product rule.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmsim.config.constraints import broken_rule

if TYPE_CHECKING:
    from llmsim.config.cluster_file.dialect import LayoutKeys, ParallelLayout

NAMES = ("attn_tp_size", "attn_dp_size", "ffn_tp_size", "ffn_ep_size")
OTHERS = ("tp_size", "ep_size", "dp_group", "npu_num", "npu_group")
ONE_DOMAIN = {
    "attention": ("ffn_tp_size", "ffn_ep_size", "ep_size"),
    "ffn": ("attn_tp_size", "attn_dp_size"),
}
"""Roles of instances that run one of the two alone -> sizes of what they do not run."""


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
    tp, dp = _two_sizes(tp, dp, stage)
    if tp * dp != stage:
        raise broken_rule(
            "num_npus",
            f"is {devices}; it must be attn_tp_size x attn_dp_size x pp_size x "
            f"prefill_context_parallel_size = {tp * dp * others}",
        )
    return tp, dp


def _two_sizes(one: int | None, other: int | None, product: int) -> tuple[int, int]:
    """Both sizes: a missing one is what the other leaves of `product`; without either, the first
    is all of it.
    """
    if one is None and other is None:
        return product, 1
    if one is None:
        assert other is not None
        return product // other, other
    if other is None:
        return one, product // one
    return one, other


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
    cut, spread = _two_sizes(cut, spread, devices)
    if cut * spread != devices:
        raise broken_rule(
            "ffn_tp_size",
            f"x ffn_ep_size = {cut} x {spread} = {cut * spread}, but attn_tp_size x attn_dp_size = "
            f"{tp} x {dp} = {devices}; attention and FFN must span the same devices",
        )
    return cut, spread


def one_domain(keys: "LayoutKeys") -> "ParallelLayout":
    """The layout of an instance that runs the attention, or the FFN, of every layer alone; raises a
    broken rule where the keys contradict.
    """
    assert keys.pd_type is not None, "the caller looked"
    for name in (*ONE_DOMAIN[keys.pd_type], "dp_group", "npu_num", "npu_group"):
        if getattr(keys, name) is not None:
            raise broken_rule(
                name,
                f'is given, but pd_type is "{keys.pd_type}"; an instance of that role has no such '
                "size, remove it",
            )
    if (keys.prefill_context_parallel_size or 1) > 1:
        raise broken_rule(
            "prefill_context_parallel_size",
            f'is {keys.prefill_context_parallel_size}, but pd_type is "{keys.pd_type}"; it must '
            'be 1 there, as only an instance with the pd_type "prefill" shares out tokens of '
            "prompts",
        )
    return _attention_alone(keys) if keys.pd_type == "attention" else _ffn_alone(keys)


def _attention_alone(keys: "LayoutKeys") -> "ParallelLayout":
    from llmsim.config.cluster_file.dialect import ParallelLayout

    if keys.tp_size is not None:
        _same_size(keys, "tp_size", "attn_tp_size")
        keys = replace(keys, attn_tp_size=keys.tp_size)
    pp = keys.pp_size or 1
    tp, dp = _attention(keys, pp)
    return ParallelLayout(tp * pp, tp, pp, None, 1, dp)


def _ffn_alone(keys: "LayoutKeys") -> "ParallelLayout":
    """`tp` is the number of ranks of a stage; ffn_tp None: the model decides how FFNs are cut."""
    from llmsim.config.cluster_file.dialect import ParallelLayout

    _same_size(keys, "tp_size", "ffn_tp_size")
    _same_size(keys, "ep_size", "ffn_ep_size")
    cut, spread = keys.ffn_tp_size or keys.tp_size, keys.ffn_ep_size or keys.ep_size
    pp = keys.pp_size or 1
    ranks = _ffn_ranks(cut, spread, pp, keys.num_npus)
    if cut is not None or spread is not None:
        cut, spread = _two_sizes(cut, spread, ranks)
    return ParallelLayout(ranks * pp, ranks, pp, spread, ffn_tp=cut)


def _ffn_ranks(cut: int | None, spread: int | None, pp: int, devices: int | None) -> int:
    """Devices of a stage; raises a broken rule where the sizes do not divide `devices`."""
    known = (cut or 1) * (spread or 1)
    if devices is None:
        return known
    both_given = cut is not None and spread is not None
    fits = known * pp == devices if both_given else devices % (known * pp) == 0
    if not fits:
        raise broken_rule(
            "num_npus",
            f"is {devices}; it must be ffn_tp_size x ffn_ep_size x pp_size, of which "
            f"{known} x {pp} = {known * pp} are given",
        )
    return devices // pp


def _same_size(keys: "LayoutKeys", name: str, other: str) -> None:
    one, two = getattr(keys, name), getattr(keys, other)
    if None not in (one, two) and one != two:
        raise broken_rule(
            name, f"is {one}, but {other} is {two}, which says the same; remove one of them"
        )
