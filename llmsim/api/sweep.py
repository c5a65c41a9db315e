"""`llmsim.sweep`: one run for each combination of values, as a table."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from llmsim.api.cluster import Cluster, build_argument, cluster_of
from llmsim.api.options.elsewhere import elsewhere
from llmsim.api.run import OUTPUTS, option_names, run
from llmsim.api.verdicts.culprits import culprits_named
from llmsim.config.errors import InfeasibleError, InputError, nearest

if TYPE_CHECKING:
    from llmsim.api.sweep_table import SweepTable
    from llmsim.config import Cluster as ClusterModel

CLUSTER, WORKLOAD = "cluster", "workload"
CALLED_HERE = {
    **dict.fromkeys(("clusters", "cluster_config", "config"), CLUSTER),
    **dict.fromkeys(("dataset", "datasets", "trace", "workloads", "dataset_path"), WORKLOAD),
}
"""Words of the command line and of other tools for the two arguments."""
MOST = 100_000


def sweep(
    cluster: "str | PathLike[str] | Mapping[str, Any] | Cluster | None",
    workload: Any,
    vary: Mapping[str, Sequence[Any]],
    **options: Any,
) -> "SweepTable":
    """Runs every combination of the values of `vary` and gives a DataFrame with a row for each.

    A key of `vary` is an option of `llmsim.run`, or `cluster` or `workload`, whose values then
    take the place of the arguments. A row holds the values, the numbers of the summary (those of
    its blocks as `goodput.share`), and `problem`, a sentence where the model does not fit. A
    cluster is called by the stem of its file, or by what its description begins with. The last key
    varies fastest. `plot.pareto()` of the table draws which rows nothing beats. Raises InputError
    for what no run takes.
    """
    from llmsim.api.sweep_table import VARIED, SweepTable

    _check(vary, options)
    _check_effects(vary.get(CLUSTER, [cluster]), [name for name in vary if name != CLUSTER])
    names = list(vary)
    labels = [_labels(name, values) for name, values in vary.items()]
    rows = []
    for values, called in zip(
        itertools.product(*vary.values()), itertools.product(*labels), strict=True
    ):
        point = dict(zip(names, values, strict=True))
        chosen = {**options, **point}
        row: dict[str, Any] = dict(zip(names, called, strict=True))
        try:
            result = run(
                chosen.pop(CLUSTER, cluster),
                chosen.pop(WORKLOAD, workload),
                steps=False,
                series=False,
                **chosen,
            )
        except InfeasibleError as error:
            rows.append({**row, "problem": str(error)})
            continue
        rows.append({**row, "problem": "", **_numbers(result.summary)})
    table = SweepTable(rows)
    table.attrs[VARIED] = names
    return table


def _check(vary: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> None:
    if not isinstance(vary, Mapping):
        raise InputError(
            f"vary is {type(vary).__name__}; give a mapping from names to lists of values",
            field="vary",
            value=vary,
        )
    count = 1
    known = [CLUSTER, WORKLOAD, *option_names(), *OUTPUTS]
    for name, values in vary.items():
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            raise InputError(
                f"vary names {name} with {values!r:.60}; give a list of values",
                field=name,
                value=values,
            )
        if name not in known:
            raise InputError(
                f"vary names {name}, which is no option of a run{_remedy(name, known)}",
                field=name,
                value=values,
            )
        if name in options:
            raise InputError(
                f"{name} is varied and given; keep one of them", field=name, value=options[name]
            )
        count *= len(values)
    if not vary or count > MOST:
        raise InputError(
            f"vary has {count if vary else 0} combinations; give from 1 to {MOST}", field="vary"
        )


def _remedy(word: str, known: Sequence[str]) -> str:
    """`; ...` saying what to vary in place of a word."""
    if ours := CALLED_HERE.get(word):
        return f'; it is called "{ours}" here'
    if argument := build_argument(word):
        return (
            f'; vary "{CLUSTER}" over clusters that differ in it, such as '
            f"llmsim.Cluster.build(model, device, {argument}=...)"
        )
    place = elsewhere(word, str, {*known, "cluster_config"})
    if place.startswith("; the dataset has it, "):
        example = place.removeprefix("; the dataset has it, ")
        return f'; vary "{WORKLOAD}" over texts that differ in it, {example}'
    return place or f"{nearest(word, known)}; `llmsim run --help` lists them, with underscores here"


def _check_effects(clusters: Sequence[Any], names: Sequence[str]) -> None:
    """Raises InputError for an option that no instance of any of the clusters takes."""
    from llmsim.api.checked.run_options import SWITCHES
    from llmsim.config.engine.options import EngineOptions
    from llmsim.config.overridden import DECODE_ROUTER, refuse_without_effect

    known = {*EngineOptions.model_fields, *SWITCHES, DECODE_ROUTER}
    of_instances = [name for name in names if name in known]
    if not of_instances:
        return
    parsed = [_parsed(cluster_of(one)) for one in clusters]
    for name in of_instances:
        refuse_without_effect(parsed, name, where=f"vary names {name}, which", field=name)


def _parsed(cluster: Cluster) -> "ClusterModel":
    with culprits_named(cluster):
        return cluster.parsed()


def _labels(name: str, values: Sequence[Any]) -> list[Any]:
    """What stands for the values of a name in the table: clusters' names, plain values
    themselves.
    """
    return _names_of(values) if name == CLUSTER else [_label(value) for value in values]


def _label(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)[:80]


def _names_of(clusters: Sequence[Any]) -> list[str]:
    """A name for each cluster; files that share a stem have their paths, others that share a name
    their places in the list, too.
    """
    found = [cluster_of(one) for one in clusters]
    labels = [one.label or CLUSTER for one in found]
    alone = Counter(labels)
    paths = [
        one.name if alone[label] > 1 and one.name != Cluster.name else label
        for one, label in zip(found, labels, strict=True)
    ]
    known = Counter(paths)
    return [f"{name} ({place})" if known[name] > 1 else name for place, name in enumerate(paths, 1)]


def _numbers(block: Mapping[str, Any], before: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in block.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{before}{name}"] = value
    return found
