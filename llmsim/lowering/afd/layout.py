"""Layouts of attention and FFN groups.

Rows come to an FFN group as the attention's ranks leave them: on columns of ranks that hold the
same rows, as many as in an attention group. What its ranks then exchange among themselves is what
they would if the attention ran beside them. With sequence parallelism each attention rank holds
rows of its own, and so does each FFN rank.
"""

from math import gcd

from msgspec.structs import replace

from llmsim.config import Group
from llmsim.config.deployment import AfdRole
from llmsim.config.errors import InputError, NotYetError
from llmsim.model import Layout, ModelConfig
from llmsim.model.layout import Domain


def afd_layout(group: Group, model: ModelConfig, stages: tuple[int, ...]) -> Layout:
    """The layout of one stage's ranks; `stages` are the layers of each.

    Raises InputError where the FFN cannot be split so, NotYetError for models that do not run yet.
    """
    role = group.afd
    assert role is not None, "the caller looked"
    _refuse_what_does_not_run_yet(model)
    attends = role.domain == "attention"
    layout = Layout(
        group.tp,
        stage_layers=stages,
        sequence_parallel=attends and group.engine.enable_sequence_parallelism,
        decode_context=group.engine.decode_context_parallel_size if attends else 1,
        exchange=group.engine.all2all_backend,
        domain=_domain(role),
        routed_rows=role.dispatch == "routed" and model.num_moe_layers > 0,
    )
    return layout if attends else _ffn_layout(group, role, model, layout)


def _domain(role: AfdRole) -> Domain:
    return role.domain


def _ffn_layout(group: Group, role: AfdRole, model: ModelConfig, layout: Layout) -> Layout:
    ranks = group.tp
    cut, spread = ffn_split(group, model)
    if cut * spread != ranks:
        raise InputError(
            f"ffn_tp_size x ffn_ep_size = {cut} x {spread} = {cut * spread}, but an FFN instance "
            f"has {ranks} devices in each stage"
        )
    if model.num_experts:
        same_rows = gcd(role.row_copies, ranks)
        columns = ranks // same_rows
        redundant = group.engine.num_redundant_experts
        return replace(
            layout, tp=same_rows, ep=spread, dp=columns, redundant_experts=redundant,
            shared_ffn=columns > 1 and spread == 1,
        )  # fmt: skip
    same_rows = gcd(role.row_copies, cut)
    columns = cut // same_rows
    return replace(layout, tp=same_rows, dp=columns, shared_ffn=columns > 1)


def ffn_split(group: Group, model: ModelConfig) -> tuple[int, int]:
    """Ranks over which one FFN, or expert, is cut, and over which experts are spread; of a dense
    model, copies of its FFNs. Not given: experts are spread, and dense FFNs are cut, over all.
    """
    if group.ffn_tp is None or group.ep is None:
        return (1, group.tp) if model.num_experts else (group.tp, 1)
    return group.ffn_tp, group.ep


def columns_of(group: Group, layout: Layout) -> int:
    """Sets of an FFN group's ranks that get rows of their own."""
    return group.tp // layout.tp


def afd_members(group: Group, model: ModelConfig) -> int:
    """Replicas that share the FFN of a group; those of an FFN group are columns of its ranks."""
    assert group.afd is not None, "the caller looked"
    return 1 if group.afd.domain == "attention" else afd_layout(group, model, ()).dp


def _refuse_what_does_not_run_yet(model: ModelConfig) -> None:
    what = ""
    if model.linear is not None or model.mixer_layers < model.num_layers:
        what = "keeps states, or has layers without attention"
    elif model.parallel:
        what = "runs attention and FFN of a layer side by side"
    elif model.ffn_layers < model.num_layers:
        what = "has layers without an FFN"
    elif model.expert_latent_size:
        what = "projects tokens before its experts"
    elif model.dense_beside_experts:
        what = "has a dense MLP beside its experts"
    elif model.layer_inputs is not None:
        what = "mixes embeddings of their own into its layers"
    elif model.ffn_widths:
        what = "has FFNs of several widths"
    elif model.attention_shapes and len(model.attention_shapes) > 1:
        what = "has attention of several shapes"
    elif model.indexer_layers and not all(model.indexer_layers):
        what = "has layers that attend to what an earlier one chose"
    if what:
        raise NotYetError(
            f"{model.name} {what}; with attention and FFN on devices of their own it does not run "
            'in this version; remove pd_type "attention" and "ffn"'
        )
