"""Prefill/decode disaggregation in the cluster file: who plays which role, and how the
KV travels.
"""

from llmsim.config.cluster_file.cluster import Cluster
from llmsim.config.deployment import Disaggregation, Group
from llmsim.config.engine.schedulers import KINDS, SGLANG
from llmsim.config.errors import InputError

MODES = ("pull", "push")
WHOLE, CHUNKED, LAYERWISE = TRANSFERS = ("whole", "chunked", "layerwise")
WORDS = (("--kv-transfer", TRANSFERS), ("--kv-transfer-mode", MODES))
"""Options of the command line, and the words that each may have."""
HANDS_OVER = ("prefill", "decode")


def resolve_disaggregation(
    cluster: Cluster, groups: tuple[Group, ...], transfer: str | None, mode: str | None
) -> Disaggregation | None:
    """How KV goes from prefill to decode groups; None where no instance has a `pd_type`.

    `transfer` and `mode` are the command line's and win over the cluster file. Whole prompts are
    pulled, as by vLLM's NIXL connector, unless told otherwise. KV is pushed in pieces, and between
    SGLang's instances, which take memory before a prompt is computed and send each chunk of it.
    Raises InputError for roles without their counterpart and for options that contradict each
    other.
    """
    given_words = transfer, mode
    _check_words(given_words)
    _check_roles(cluster, groups)
    if not any(group.pd_type for group in groups):
        _check_that_some_layout_hands_over(cluster, given_words)
        return None
    schedulers = {group.engine.scheduler for group in groups if group.pd_type is not None}
    reserves_first = schedulers == {SGLANG}
    given_mode = mode or cluster.kv_transfer_mode
    sends_chunks = reserves_first and given_mode != "pull"
    how = transfer or cluster.kv_transfer or (CHUNKED if sends_chunks else WHOLE)
    if how != WHOLE and given_mode == "pull":
        where = "--kv-transfer-mode" if mode else cluster.position(("kv_transfer_mode",))
        pieces = "layer by layer" if how == LAYERWISE else "by chunks"
        raise InputError(
            f'{where} is "pull", but a decode instance that pulls learns of a prompt when its '
            "prefill has ended, so "
            f'nothing is left to move {pieces}; say "push", or kv_transfer "whole"'
        )
    default = "push" if how != WHOLE or reserves_first else "pull"
    return Disaggregation(how=how, push=(given_mode or default) == "push")


def _check_words(given: tuple[str | None, str | None]) -> None:
    """Raises InputError for a word of the command line that is none of the option's (`WORDS`)."""
    for (option, known), value in zip(WORDS, given, strict=True):
        if value is not None and value not in known:
            raise InputError(f'{option} is "{value}"; it may be {" or ".join(known)}')


def _check_that_some_layout_hands_over(
    cluster: Cluster, given: tuple[str | None, str | None]
) -> None:
    """Raises InputError for an option of `WORDS` that no layout of the file uses: options hold for
    all layouts.
    """
    if _some_layout_hands_over(cluster):
        return
    for (option, _), value in zip(WORDS, given, strict=True):
        if value is not None:
            raise InputError(
                f"{option} {value}: no instance of {cluster.path} has a pd_type, so no KV is "
                "handed over; "
                'give instances the pd_type "prefill" or "decode", or remove the option'
            )


def _some_layout_hands_over(cluster: Cluster) -> bool:
    """Whether any layout of the file has roles."""
    layouts = cluster.layouts or {}
    return any(one.pd_type in HANDS_OVER for instances in layouts.values() for one in instances)


def _check_roles(cluster: Cluster, groups: tuple[Group, ...]) -> None:
    """Raises InputError for the first instance whose role does not go with the others."""
    seen = _Roles(groups)
    instances = [
        where for where, instance in cluster.instances() for _ in range(instance.layout.replicas)
    ]
    for location, group in zip(instances, groups, strict=True):
        problem = seen.problem(group) if group.pd_type is not None else ""
        if problem:
            position = cluster.position((*location, "pd_type"))
            raise InputError(f'{position} is "{group.role}"{problem}')


class _Roles:
    """Which roles and schedulers the groups of each model and dp_group have."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self._schedulers: dict[tuple[str, str | None], set[str]] = {}
        self._dp_roles: dict[str, set[str | None]] = {}
        for group in groups:
            role = group.model_name, group.pd_type
            self._schedulers.setdefault(role, set()).add(group.engine.scheduler)
            if group.dp_group:
                self._dp_roles.setdefault(group.dp_group, set()).add(group.pd_type)

    def problem(self, group: Group) -> str:
        """Why the group's role does not go with the others; empty where it does."""
        other = "decode" if group.pd_type == "prefill" else "prefill"
        others = self._schedulers.get((group.model_name, other))
        if others is None:
            return (
                f', but no instance of {group.model_name} has the pd_type "{other}"; '
                "add one, or make this one null"
            )
        if group.dp_group and len(self._dp_roles[group.dp_group]) > 1:
            return (
                f', but others of its dp_group "{group.dp_group}" play another role; '
                "give all of them the same pd_type"
            )
        scheduler, origin = group.engine.scheduler, group.engine.origin
        reason = KINDS[scheduler].lacks.get("pd_type")
        if reason is not None:
            return (
                f", which does not go with the scheduler {scheduler} ({origin['scheduler']}): "
                f"{reason}; choose another scheduler"
            )
        if others != {scheduler}:
            return (
                f" with scheduler {scheduler} ({origin['scheduler']}), but "
                f"a {other} instance of {group.model_name} has {min(others - {scheduler})}; "
                "engines hand KV over to their own kind: give both the same"
            )
        if group.engine.skip_prefill:
            return (
                f", but with skip_prefill ({origin['skip_prefill']}) there "
                "are no prefills to separate; remove one of them"
            )
        return ""
