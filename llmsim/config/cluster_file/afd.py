"""Attention-FFN disaggregation in the cluster file: which instances run their layers together, and
how.
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict, replace

from llmsim.config.cluster_file.cluster import Cluster
from llmsim.config.cluster_file.instance import AFD_ROLES, Instance
from llmsim.config.cluster_file.json_positions import Location
from llmsim.config.deployment import AfdRole, Group, Offloading
from llmsim.config.engine.scheduler_kinds import INSTALLED, VLLM
from llmsim.config.errors import InputError, NotYetError

DEFAULTS = {"afd_micro_batches": 2, "afd_dispatch": "dense"}
"""Keys of a whole afd_group -> what counts where none of its instances gives them."""
ALIKE = ("model_name", "hardware", "tp", "pp", "ep", "ffn_tp", "pp_layers", "memory")
"""What instances of one role in an afd_group have in common."""

Placed = tuple[Location, Instance, list[Group]]
"""An instance, where it is, and its groups."""


def resolve_afd(cluster: Cluster, groups: list[Group]) -> list[Group]:
    """The groups with their roles under attention-FFN disaggregation.

    Raises InputError for roles without their counterpart and for keys that contradict each other,
    NotYetError for what a later version runs.
    """
    placed = [one for one in _placed(cluster, groups) if one[1].pd_type in AFD_ROLES]
    names = dict.fromkeys(instance.afd_group for _, instance, _ in placed)
    resolved = {group.index: group for group in groups}
    for name in names:
        members = [one for one in placed if one[1].afd_group == name]
        for group in _afd_group(cluster, members, groups):
            resolved[group.index] = group
    return [resolved[group.index] for group in groups]


def _placed(cluster: Cluster, groups: list[Group]) -> Iterable[Placed]:
    before = 0
    for location, instance in cluster.instances():
        after = before + instance.layout.replicas
        yield location, instance, groups[before:after]
        before = after


def _afd_group(cluster: Cluster, members: list[Placed], groups: list[Group]) -> list[Group]:
    _check_group(cluster, members)
    attention = _groups_of("attention", members)
    ffn = _groups_of("ffn", members)
    role = AfdRole(
        name=members[0][1].afd_group or "",
        domain="attention",
        lanes=_common(cluster, members, "afd_micro_batches"),
        dispatch=_common(cluster, members, "afd_dispatch"),
        attention=tuple(group.index for group in attention),
        ffn=tuple(group.index for group in ffn),
        row_copies=_row_copies(attention[0]),
    )
    ffn_role = replace(role, domain="ffn")
    pd_type = _pd_type_of_attention(attention[0].model_name, groups)
    return [
        *(replace(group, pd_type=pd_type, afd=role) for group in attention),
        *(replace(group, afd=ffn_role) for group in ffn),
    ]


def _row_copies(attention: Group) -> int:
    """Ranks of an attention group that hold the same rows of hidden states."""
    return 1 if attention.engine.enable_sequence_parallelism else attention.tp


def _pd_type_of_attention(model_name: str, groups: list[Group]) -> str | None:
    """Attention groups decode where others prefill the prompts of their model, else do both."""
    for group in groups:
        if group.pd_type == "prefill" and group.model_name == model_name:
            return "decode"
    return None


def _groups_of(role: str, members: list[Placed]) -> list[Group]:
    return [group for _, one, own in members if one.pd_type == role for group in own]


def _check_group(cluster: Cluster, members: list[Placed]) -> None:
    for name, other in (AFD_ROLES, AFD_ROLES[::-1]):
        _require_counterpart(cluster, members, name, other)
        _require_alike(cluster, [one for one in members if one[1].pd_type == name])
    _require_one_model_and_depth(cluster, members)
    _require_one_split_of_rows(cluster, members)
    _require_drafts_of_attention(cluster, members)
    _require_context_ranks_of_attention(cluster, members)
    for one in members:
        _refuse_what_does_not_run_yet(cluster, one)


def _require_counterpart(cluster: Cluster, members: list[Placed], role: str, other: str) -> None:
    roles = {instance.pd_type for _, instance, _ in members}
    if role in roles and other not in roles:
        location, instance, _ = next(one for one in members if one[1].pd_type == role)
        raise InputError(
            f'{cluster.position((*location, "afd_group"))} is "{instance.afd_group}", but no '
            f'instance of that afd_group has the pd_type "{other}"; add one'
        )


def _require_alike(cluster: Cluster, members: list[Placed]) -> None:
    for location, _, own in members[1:]:
        first, other = members[0][2][0], own[0]
        differs = [what for what in ALIKE if getattr(first, what) != getattr(other, what)]
        if not differs and _options(first) != _options(other):
            differs = ["engine options"]
        if differs:
            raise InputError(
                f"{cluster.position(location)}: another {differs[0]} than {first.field_path}, "
                f'which has the same role in the afd_group "{members[0][1].afd_group}"; instances '
                "of one role must be alike"
            )


def _options(group: Group) -> tuple[object, ...]:
    return tuple(value for name, value in asdict(group.engine).items() if name != "origin")


def _require_one_model_and_depth(cluster: Cluster, members: list[Placed]) -> None:
    first = members[0]
    for location, _, own in members[1:]:
        for what, key in (("model_name", "model_name"), ("pp", "pp_size")):
            mine, others = getattr(own[0], what), getattr(first[2][0], what)
            if mine != others:
                raise InputError(
                    f"{cluster.position((*location, key))} is {mine}, but {first[2][0].field_path} "
                    f'has {others}; all of the afd_group "{first[1].afd_group}" have the same'
                )
        if own[0].pp_layers != first[2][0].pp_layers:
            raise InputError(
                f"{cluster.position((*location, 'pp_layers'))} differs from that of "
                f'{first[2][0].field_path}; all of the afd_group "{first[1].afd_group}" have the '
                "same"
            )


def _require_one_split_of_rows(cluster: Cluster, members: list[Placed]) -> None:
    """FFN ranks have rows of their own where the attention's have: their own option says nothing.

    Raises InputError where FFN instances have it alone.
    """
    attention = next(own[0].engine for _, one, own in members if one.pd_type == "attention")
    for location, one, own in members:
        shared_out = own[0].engine.enable_sequence_parallelism
        if one.pd_type == "ffn" and shared_out and not attention.enable_sequence_parallelism:
            key = own[0].engine.origin.get("enable_sequence_parallelism", "its engine options")
            raise InputError(
                f"{cluster.position(location)}: enable_sequence_parallelism ({key}) is true, but "
                f'false of the attention instances of the afd_group "{one.afd_group}", which share '
                "their rows out; set it true there"
            )


def _require_drafts_of_attention(cluster: Cluster, members: list[Placed]) -> None:
    """Attention instances draft: InputError where FFN instances have drafts that those have not."""
    attention = next(own[0].engine for _, one, own in members if one.pd_type == "attention")
    for location, one, own in members:
        engine = own[0].engine
        asked = one.pd_type == "ffn" and engine.speculation is not None
        if asked and engine.speculation != attention.speculation:
            key = engine.origin.get("speculative_config", "its engine options")
            raise InputError(
                f"{cluster.position(location)}: speculative_config ({key}) is not that of the "
                f'attention instances of the afd_group "{one.afd_group}", which draft; give it '
                "there"
            )


def _require_context_ranks_of_attention(cluster: Cluster, members: list[Placed]) -> None:
    """FFN instances keep no KV: InputError where they share it out and the attention does not."""
    attention = next(own[0].engine for _, one, own in members if one.pd_type == "attention")
    for location, one, own in members:
        engine = own[0].engine
        ranks = engine.decode_context_parallel_size
        if one.pd_type == "ffn" and ranks not in (1, attention.decode_context_parallel_size):
            key = engine.origin.get("decode_context_parallel_size", "its engine options")
            raise InputError(
                f"{cluster.position(location)}: decode_context_parallel_size ({key}) is {ranks}, "
                f"but an FFN instance keeps no KV that ranks could share; give it to the attention "
                f'instances of the afd_group "{one.afd_group}"'
            )


def _common(cluster: Cluster, members: list[Placed], key: str) -> Any:
    given = [(location, getattr(one, key)) for location, one, _ in members]
    given = [(location, value) for location, value in given if value is not None]
    for location, value in given[1:]:
        if value != given[0][1]:
            raise InputError(
                f"{cluster.position((*location, key))} is {value}, but another instance of the "
                f"afd_group has {given[0][1]}; all of them have the same, and one may say it"
            )
    return given[0][1] if given else DEFAULTS[key]


def _refuse_what_does_not_run_yet(cluster: Cluster, member: Placed) -> None:
    location, instance, own = member
    engine = own[0].engine
    if engine.scheduler == INSTALLED:
        raise NotYetError(
            f'{cluster.position((*location, "pd_type"))} is "{instance.pd_type}" with the '
            f"scheduler {engine.scheduler} ({engine.origin.get('scheduler', 'scheduler')}), which "
            f"does not run in this version; set scheduler to {VLLM}"
        )
    if replace(own[0].offloading, local_reads=False) != Offloading():
        raise InputError(
            f'{cluster.position((*location, "pd_type"))} is "{instance.pd_type}" with weights or '
            "operators outside of its devices, whose links would pace every lane; remove them, "
            f"and give the {instance.pd_type} more or larger devices"
        )
