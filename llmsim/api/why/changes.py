"""What one could change in a run: each change makes new inputs, which another run tests."""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from llmsim.api.checked.run_inputs import RunInputs
from llmsim.api.cluster import Cluster

if TYPE_CHECKING:
    from llmsim.api.result import Result
    from llmsim.api.workload import WorkloadSource
    from llmsim.core import Workload

Fields = dict[str, Any]
MEMORIES = ("cpu_mem", "cxl_mem", "storage")
"""Keys of a node, or of the cluster, of memories below those of the devices."""
WIDTHS = ("tp_size", "attn_tp_size", "ffn_tp_size", "npu_num")
"""Keys of an instance that grow with its tensor parallelism."""
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Change:
    """A change in words, and what makes the inputs of the run that tests it."""

    text: str
    make: Callable[[RunInputs], RunInputs]
    most_input_tokens: int | None = None
    """Longer prompts are left out, and the percentiles compared are those of the others."""


def instance_keys(
    result: "Result", groups: Sequence[int], keys: Mapping[str, Any], text: str
) -> Change:
    """Keys of the instances behind these groups; None removes a key, wherever it was given."""
    paths = _paths(result, groups)
    removed = {key for key, value in keys.items() if value is None}

    def edit(fields: Fields) -> None:
        for key in removed:
            fields.get("engine", {}).pop(key, None)
        for path in paths:
            instance = _at(fields, path)
            for key, value in keys.items():
                instance.pop(key, None)
                if value is not None:
                    instance[key] = value

    def make(inputs: RunInputs) -> RunInputs:
        kept = {name: value for name, value in inputs.options.items() if name not in removed}
        return _edited(edit)(inputs.changed(options=kept))

    return Change(text, make)


def like_peer(result: "Result", group: int, peer: int, text: str) -> Change:
    """The group's instance with all keys of another one."""
    mine, other = _paths(result, [group])[0], _paths(result, [peer])[0]

    def edit(fields: Fields) -> None:
        _at(fields, mine[:-1])[mine[-1]] = copy.deepcopy(_at(fields, other))

    return Change(text, _edited(edit))


def more_instances(result: "Result", groups: Sequence[int]) -> Change:
    """Each instance behind these groups once more, in a node like its own; with layouts, which
    share their devices, each instance of all layouts. Attention brings its FFN.
    """
    all_groups = result._prepared.deployment.groups
    ffns = {ffn for group in groups if (afd := all_groups[group].afd) for ffn in afd.ffn}
    paths = set(_paths(result, sorted({*groups, *ffns})))

    def edit(fields: Fields) -> None:
        for layout in fields.get("layouts", {}).values():
            for instance in layout:
                instance["count"] = 2 * instance.get("count", 1)
        if "layouts" in fields:
            return
        for number, node in enumerate(list(fields["nodes"])):
            chosen = [
                copy.deepcopy(instance)
                for index, instance in enumerate(node["instances"])
                if ("nodes", number, "instances", index) in paths
            ]
            for instance in chosen:
                if instance.get("dp_group") is not None:
                    instance["dp_group"] = f"{instance['dp_group']}-more"
            if chosen:
                rest = {key: value for key, value in node.items() if key != "num_instances"}
                fields["nodes"].append({**copy.deepcopy(rest), "instances": chosen})
        if "num_nodes" in fields:
            fields["num_nodes"] = len(fields["nodes"])

    if result._prepared.lowered.layouts is not None:
        return Change("twice the devices in every layout", _edited(edit))
    if ffns:
        counted = f"{2 * len(groups)} attention and {2 * len(ffns)} FFN instances"
        return Change(f"{counted} instead of {len(groups)} and {len(ffns)}", _edited(edit))
    role = all_groups[groups[0]].pd_type
    named = "instances" if role is None else f"{role} instances"
    return Change(f"{2 * len(groups)} {named} instead of {len(groups)}", _edited(edit))


def devices_of(result: "Result", groups: Sequence[int], like: Sequence[int], text: str) -> Change:
    """The instances behind these groups on the kind of device that the first of the others has."""
    paths, other = set(_paths(result, groups)), _paths(result, like)[0]

    def edit(fields: Fields) -> None:
        pattern = _at(fields, other)
        for path in paths:
            instance = _at(fields, path)
            for key in ("hardware", "npu_mem"):
                instance.pop(key, None)
                if key in pattern:
                    instance[key] = copy.deepcopy(pattern[key])

    return Change(text, _edited(edit))


def without_speculation(text: str) -> Change:
    """No drafts, wherever the run was told to make them."""

    def edit(fields: Fields) -> None:
        instances = [one for node in fields.get("nodes", []) for one in node["instances"]]
        instances += [one for layout in fields.get("layouts", {}).values() for one in layout]
        for place in (*instances, fields.get("engine", {})):
            place.pop("speculative_config", None)

    def make(inputs: RunInputs) -> RunInputs:
        options = {
            name: value for name, value in inputs.options.items() if name != "speculative_config"
        }
        return _edited(edit)(inputs.changed(options=options))

    return Change(text, make)


def wider(result: "Result", groups: Sequence[int], whose: str = "") -> Change:
    """Twice the tensor parallelism of the instances behind these groups."""
    paths = set(_paths(result, groups))
    tp = result._results.groups[groups[0]].tp

    def edit(fields: Fields) -> None:
        for path in paths:
            instance = _at(fields, path)
            wide = [key for key in WIDTHS if instance.get(key)]
            for key in wide or WIDTHS[:1]:
                instance[key] = 2 * instance.get(key, 1)

    return Change(f"TP{2 * tp} instead of TP{tp}{whose}", _edited(edit))


def disaggregated(result: "Result", groups: Sequence[int]) -> Change:
    """Half of the instances prefill and half decode; a single one gets one that prefills."""
    paths = list(dict.fromkeys(_paths(result, groups)))
    prefill = max(1, len(paths) // 2)

    def edit(fields: Fields) -> None:
        nodes = fields["nodes"]
        if len(paths) == 1:
            _, node, _, index = paths[0]
            instances = nodes[node]["instances"]
            nodes[node].pop("num_instances", None)
            instances.append({**copy.deepcopy(instances[index]), "pd_type": "prefill"})
            instances[index]["pd_type"] = "decode"
            return
        for number, path in enumerate(paths):
            _at(fields, path)["pd_type"] = "prefill" if number < prefill else "decode"

    decode = max(1, len(paths) - prefill)
    return Change(f"{prefill} prefill and {decode} decode instances (disaggregated)", _edited(edit))


def pinned(layout: str, text: str) -> Change:
    """One layout for the whole run."""

    def edit(fields: Fields) -> None:
        fields["initial"] = layout
        for key in ("switch", "decide", "reconfiguration"):
            fields.pop(key, None)

    return Change(text, _edited(edit))


def kv_moves(text: str) -> Change:
    """KV moves to the next layout's instances."""

    def edit(fields: Fields) -> None:
        fields["reconfiguration"] = {**fields.get("reconfiguration", {}), "kv": "move"}

    return Change(text, _edited(edit))


def faster_links(factor: float, text: str) -> Change:
    """Every link of the cluster file with `factor` times the bandwidth and less latency."""

    def edit(fields: Fields) -> None:
        fields["link_bw"] = _scaled(fields["link_bw"], factor)
        fields["link_latency"] = _scaled(fields["link_latency"], 1 / factor)
        for link in _host_links(fields):
            _scale(link, "bandwidth_gb_per_s", factor)
            _scale(link, "latency_ns", 1 / factor)

    return Change(text, _edited(edit))


def faster_memories(factor: float, text: str) -> Change:
    """Host memories, the pool, storage and the links to them with `factor` times the bandwidth."""

    def edit(fields: Fields) -> None:
        alike = [host for host in _hosts(fields) if not host.get("host_link")]
        if (alike and not fields.get("host_link")) or fields.get("storage"):
            _scale(fields, "link_bw", factor)
        for link in _host_links(fields):
            _scale(link, "bandwidth_gb_per_s", factor)
        for place in (*_hosts(fields), fields):
            for name in MEMORIES:
                memory: Fields = place.get(name) or {}
                for key in memory:
                    if key.endswith("bw"):
                        memory[key] = _scaled(memory[key], factor)

    return Change(text, _edited(edit))


def option(name: str, value: Any, text: str) -> Change:
    """An option of the run."""
    return Change(text, lambda inputs: inputs.changed(options={**inputs.options, name: value}))


def without_long_prompts(most: int, text: str) -> Change:
    """The same requests without those whose prompts are longer than `most`."""

    def keep(workload: "Workload") -> "Workload":
        from llmsim.workload.selection import lines_of

        return lines_of(workload, workload.input_tokens <= most)

    return Change(text, _workload(keep), most)


def evenly_spaced(text: str) -> Change:
    """The same requests over the same time, at even distances."""

    def space(workload: "Workload") -> "Workload":
        heads = np.flatnonzero(workload.arrival_ps >= 0)
        arrival = workload.arrival_ps.copy()
        order = heads[np.argsort(arrival[heads], kind="stable")]
        first, last = int(arrival[order[0]]), int(arrival[order[-1]])
        arrival[order] = np.linspace(first, last, len(order)).astype(np.int64)
        return replace(workload, arrival_ps=arrival)

    return Change(text, _workload(space))


def without_prompts(most: int, text: str) -> Change:
    """The same requests without the longest prompts, where these are the slow requests."""
    return Change(text, without_long_prompts(most, text).make)


@dataclass(frozen=True)
class EditedWorkload:
    """A workload whose requests are edited once they are read."""

    source: "WorkloadSource"
    edit: "Callable[[Workload], Workload]"

    def load(self, models: Sequence[str], granularity: int, limit: int) -> "Workload":
        """The edited requests."""
        return self.edit(self.source.load(models, granularity, limit))


def _workload(edit: "Callable[[Workload], Workload]") -> Callable[[RunInputs], RunInputs]:
    from llmsim.api.workload import workload_source

    return lambda inputs: inputs.changed(
        workload=EditedWorkload(workload_source(inputs.workload), edit)
    )


def _edited(edit: Callable[[Fields], None]) -> Callable[[RunInputs], RunInputs]:
    def make(inputs: RunInputs) -> RunInputs:
        fields = inputs.cluster.fields()
        edit(fields)
        return inputs.changed(cluster=Cluster.of(fields, inputs.cluster.name))

    return make


def _hosts(fields: Fields) -> list[Fields]:
    """What the file says of each host, or of all hosts of layouts."""
    return [*fields.get("nodes", []), *([fields.get("node", {})] if "layouts" in fields else [])]


def _host_links(fields: Fields) -> list[Fields]:
    """The links to hosts that the file tells apart from those between devices."""
    return [one["host_link"] for one in (fields, *_hosts(fields)) if one.get("host_link")]


def _scale(fields: Fields, key: str, factor: float) -> None:
    """Multiplies a number of the file, or each of a list, if it is given."""
    if fields.get(key) is not None:
        fields[key] = _scaled(fields[key], factor)


def _paths(result: "Result", groups: Sequence[int]) -> list[Path]:
    """The instance of the cluster file behind each group; a group's replicas share one."""
    all_groups = result._prepared.deployment.groups
    return [_keys_of(all_groups[group].field_path) for group in groups]


def _keys_of(field_path: str) -> Path:
    """The keys and numbers of a path such as `layouts.many[0]` or `layouts["a b"][0]`."""
    found = re.findall(r'([^.\[\]"]+)|("(?:[^"\\]|\\.)*")', field_path)
    keys = [json.loads(quoted) if quoted else plain for plain, quoted in found]
    return tuple(int(key) if key.isdecimal() else key for key in keys)


def _at(fields: Fields, path: Path) -> Any:
    inside: Any = fields
    for key in path:
        inside = inside[key]
    return inside


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_scaled(one, factor) for one in value]
    return value * factor
