"""A cluster as a value: read from a file, made of a mapping, or built from a model and a device."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from llmsim.config.deployment import ASSUMED_LINK_LATENCY_NS
from llmsim.config.errors import InputError, nearest

if TYPE_CHECKING:
    from llmsim.config import Cluster as ClusterModel
    from llmsim.model.types import Hardware

LINK_LATENCY_NS, NODE_LINK_GB_PER_S, NODE_LATENCY_NS = ASSUMED_LINK_LATENCY_NS, 50, 2000
"""No data sheet states latencies: the assumptions of the bundled files, as is one card of 400 Gb/s
for each device.
"""
MOST = 1 << 16
"""Instances and sizes that a cluster file holds at most."""
FILES = (".json", ".yaml", ".yml")
"""Suffixes of cluster files."""
LABEL = 100
"""Characters of a cluster's label."""
HOST_MEMORY = {"mem_size": 1024, "mem_bw": 307.2, "mem_latency": 0}
"""GiB, GB/s and ns of a node's host memory; an assumption: one socket with eight channels of
DDR5-4800.
"""


Json = dict[str, Any]


class Sizes(NamedTuple):
    """How an instance is split: `ep` None where it is not said, `dp` data-parallel ranks of
    `tp` x `pp` devices.
    """

    tp: int = 1
    pp: int = 1
    ep: int | None = None
    dp: int = 1

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Cluster:
    """A cluster file as text; `name` stands for it in errors and relative paths start beside it."""

    text: str
    name: str = "cluster"

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The cluster of a file; raises InputError where it cannot be read."""
        from llmsim.config.cluster_file.loading import read_text

        return cls(read_text(Path(path)), fspath(path))

    @classmethod
    def of(cls, fields: Mapping[str, Any], name: str = "cluster") -> Self:
        """The cluster of a mapping with the keys of a cluster file; InputError for another value
        than JSON has.
        """
        if not isinstance(fields, Mapping):
            raise InputError(f"a cluster is {type(fields).__name__}; give a mapping", value=fields)
        try:
            return cls(json.dumps(fields, indent=2) + "\n", name)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}: {error}; give numbers, texts, lists and mappings", value=fields
            ) from None

    @classmethod
    def build(
        cls,
        model: str = "",
        device: str = "",
        *,
        tp: int = 1,
        pp: int = 1,
        ep: int | None = None,
        dp: int = 1,
        instances: int = 1,
        prefill: int = 0,
        decode: int = 0,
        attention: int = 0,
        ffn: int = 0,
        prefill_tp: int | None = None,
        decode_tp: int | None = None,
        devices_per_node: int = 8,
        tensor_parallel_size: int | None = None,
        pipeline_parallel_size: int | None = None,
        data_parallel_size: int | None = None,
        expert_parallel_size: int | None = None,
        enable_expert_parallel: bool = False,
        **others: Any,
    ) -> Self:
        """`instances` copies of a model, or `prefill` and `decode` instances of it, on a device; or
        `attention` and `ffn` instances that run their halves of every layer, with `prefill` ones
        for the prompts or without.

        `model` is a bundled model or the path of a `config.json`, `device` a device or the path of
        its data sheet, which gives memory, bandwidth and links. `tensor_parallel_size`,
        `pipeline_parallel_size` and `data_parallel_size` are vLLM's names of `tp`, `pp` and `dp`,
        `expert_parallel_size` is SGLang's of `ep`. The `dp` ranks of an instance share its experts,
        which are cut over `tp` x `dp` devices, or stay whole with `ep` = `tp` x `dp`, which is what
        vLLM's `enable_expert_parallel` sets. `prefill_tp` and `decode_tp` take the place of `tp` in
        instances of their role. Raises InputError where the model cannot be split so, where a role
        lacks its counterpart, and for a name that is none of these.
        """
        _refuse_others(others)
        roles = _roles(instances, prefill, decode, attention, ffn)
        tp = _one_size("tp", tp, "tensor_parallel_size", tensor_parallel_size)
        pp = _one_size("pp", pp, "pipeline_parallel_size", pipeline_parallel_size)
        dp = _one_size("dp", dp, "data_parallel_size", data_parallel_size)
        _check_ranks(dp, attention, ffn)
        if expert_parallel_size is not None:
            ep = _one_size("ep", ep or 1, "expert_parallel_size", expert_parallel_size)
        sizes = {"tp": tp, "pp": pp, "dp": dp, "devices_per_node": devices_per_node}
        _check_counts(sizes if ep is None else {**sizes, "ep": ep}, 1)
        tp_of = _tp_of_roles(roles, {"prefill": prefill_tp, "decode": decode_tp})
        _check_names({"model": model, "device": device})
        model, device = fspath(model), fspath(device)
        starter = Starter(tp_of, whole_experts=enable_expert_parallel)
        each = Sizes(tp, pp, ep, dp)
        return cls.of(starter_fields(model, device, roles, each, devices_per_node, starter))

    def __repr__(self) -> str:
        """The name and the description of the file, as far as a line goes."""
        try:
            said = self.fields().get("description") or f"{len(self.text)} characters"
        except InputError as error:
            said = str(error)
        return f"<llmsim.Cluster {self.name}: {str(said).partition('. ')[0]:.200}>"

    @property
    def label(self) -> str:
        """What tables and pictures call it: the stem of its file, or what its description begins
        with; empty where it has neither.
        """
        if self.name != type(self).name:
            path = Path(self.name)
            return path.stem if path.suffix in FILES else self.name
        try:
            said = self.fields().get("description")
        except InputError:
            said = None
        return str(said or "").partition(". ")[0].removesuffix(".")[:LABEL]

    def fields(self) -> dict[str, Any]:
        """The keys of the cluster file; a copy."""
        return self.parsed().plain()

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the cluster file."""
        from llmsim.export.files import atomic_writer

        with atomic_writer(Path(path)) as stream:
            stream.write(self.text)

    def parsed(self) -> "ClusterModel":
        """The checked cluster; raises InputError with file, line and field."""
        from llmsim.config import parse_cluster

        return parse_cluster(self.text, self.name)


_CALLED_HERE = {
    "dp_size": "dp",
    "replicas": "instances",
    "num_instances": "instances",
    "ep_size": "ep",
    "tp_size": "tp",
    "pp_size": "pp",
    "model_name": "model",
    "hardware": "device",
    "gpu": "device",
    "gpu_type": "device",
    "num_prefill": "prefill",
    "num_decode": "decode",
    "gpus_per_node": "devices_per_node",
}
"""Words of other tools for an argument of `Cluster.build`; spelling alone would not find them."""
_BUILD = (
    *("model", "device", "tp", "pp", "ep", "dp", "instances"),
    *("prefill", "decode", "attention", "ffn"),
    *(
        "prefill_tp",
        "decode_tp",
        "devices_per_node",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "expert_parallel_size",
        "enable_expert_parallel",
    ),
)


def build_argument(word: str) -> str | None:
    """The argument of `Cluster.build` that a word means; None where it means none."""
    return word if word in _BUILD else _CALLED_HERE.get(word)


def _refuse_others(others: Mapping[str, Any]) -> None:
    """Raises InputError for a name that `Cluster.build` does not have."""
    for name, value in others.items():
        ours = _CALLED_HERE.get(name)
        named = f'; it is called "{ours}" here' if ours else nearest(name, _BUILD)
        hint = named or f"; it takes {', '.join(_BUILD)}, and `Cluster.of` every key of a file"
        raise InputError(f"{name} is no option of Cluster.build{hint}", field=name, value=value)


def _roles(instances: int, prefill: int, decode: int, attention: int, ffn: int) -> list[str | None]:
    """The role of every instance; raises InputError for one without its counterpart, for a number
    below 0, and for no instance.
    """
    named = {"prefill": prefill, "decode": decode, "attention": attention, "ffn": ffn}
    _check_counts({"instances": instances}, 1)
    _check_counts(named, 0)
    if instances > 1 and any(named.values()):
        raise InputError(
            f"instances is {instances} beside instances with a role; leave it out, and give the "
            "number of each role",
            field="instances",
            value=instances,
        )
    if bool(attention) != bool(ffn):
        raise InputError(
            f"attention is {attention} and ffn is {ffn}; give both, or neither for instances that "
            "run whole layers",
            field="ffn" if attention else "attention",
            value=0,
        )
    if attention and decode:
        raise InputError(
            f"decode is {decode} beside attention {attention}, whose instances decode; leave "
            "decode out",
            field="decode",
            value=decode,
        )
    if bool(prefill) != bool(decode) and not attention:
        raise InputError(
            f"prefill is {prefill} and decode is {decode}; give both, or neither for "
            "instances that do both",
            field="decode" if prefill else "prefill",
            value=0,
        )
    roles: list[str | None] = [role for role, count in named.items() for _ in range(count)]
    return roles or [None] * instances


def _check_ranks(dp: int, attention: int, ffn: int) -> None:
    """Raises InputError for data-parallel ranks of instances that run halves of layers."""
    if dp != 1 and attention:
        raise InputError(
            f"dp is {dp} beside attention {attention} and ffn {ffn}, whose instances run halves of "
            "layers; give more of them, and leave dp out",
            field="dp",
            value=dp,
        )


def _tp_of_roles(
    roles: Sequence[str | None], given: Mapping[str, int | None]
) -> dict[str | None, int]:
    """The tensor-parallel devices of roles that have a size of their own; raises InputError for
    that of a role that no instance has.
    """
    found: dict[str | None, int] = {role: tp for role, tp in given.items() if tp is not None}
    _check_counts({f"{role}_tp": tp for role, tp in found.items()}, 1)
    for role, tp in found.items():
        if role not in roles:
            raise InputError(
                f"{role}_tp is {tp}, but {role} is 0; give the number of {role} instances, or "
                "leave it out",
                field=f"{role}_tp",
                value=tp,
            )
    return found


def _check_counts(counts: Mapping[str, Any], least: int) -> None:
    """Raises InputError for a value that is no whole number from `least` to `MOST`."""
    for name, count in counts.items():
        is_count = isinstance(count, int) and not isinstance(count, bool)
        if not is_count or not least <= count <= MOST:
            raise InputError(
                f"{name} is {count!r:.60}; give a whole number from {least} to {MOST}",
                field=name,
                value=count,
            )


def _check_names(names: Mapping[str, Any]) -> None:
    """Raises InputError for a value that is neither a text nor a path."""
    for name, value in names.items():
        if value == "":
            raise InputError(
                f"{name} is missing; give a name, or the path of a file", field=name, value=value
            )
        if not isinstance(value, str | PathLike):
            raise InputError(
                f"{name} is {type(value).__name__}; give a name, or the path of a file",
                field=name,
                value=value,
            )


def _one_size(name: str, size: int, vllm: str, given: int | None) -> int:
    """The size under either name; raises InputError where they disagree."""
    if given is None or size in (1, given):
        return size if given is None else given
    raise InputError(
        f"{name} is {size} and {vllm}, the same size, is {given}; give one of them",
        field=vllm,
        value=given,
    )


def cluster_of(cluster: Any) -> Cluster:
    """A cluster of what `llmsim.run` takes: a path, a mapping, or a `Cluster`."""
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, str | PathLike):
        return Cluster.load(cluster)
    if isinstance(cluster, Mapping):
        return Cluster.of(cluster)
    raise InputError(
        f"cluster is {type(cluster).__name__}; give a path, a mapping with the keys of a cluster "
        "file, or a llmsim.Cluster",
        field="cluster",
        value=cluster,
    )


@dataclass(frozen=True)
class Starter:
    """What differs by role in a starter file."""

    tp_of: Mapping[str | None, int] = field(default_factory=dict)
    """The tp of roles with another."""
    whole_experts: bool = False
    """Whether experts are spread whole over all devices of an instance's stage."""

    def sizes(self, role: str | None, sizes: Sizes) -> Sizes:
        """Of a role's instances; raises InputError for another `ep` than whole experts take."""
        own = sizes._replace(tp=self.tp_of.get(role, sizes.tp))
        if not self.whole_experts:
            return own
        ranks = own.tp * own.dp
        if own.ep not in (None, 1, ranks):
            raise InputError(
                f"ep is {own.ep} beside enable_expert_parallel, which spreads whole experts over "
                f"{ranks} devices; leave ep out",
                field="ep",
                value=own.ep,
            )
        return own._replace(ep=ranks)


def starter_fields(
    model: str,
    device: str,
    roles: Sequence[str | None],
    sizes: Sizes,
    devices_per_node: int,
    starter: Starter | None = None,
) -> dict[str, Any]:
    """The keys of a starter file: an instance for each role (None: both), on a node or, where it is
    larger, on several of its own. Raises InputError where the model cannot be split so.
    """
    from llmsim.model import load_model
    from llmsim.model.hardware import data_sheet

    starter = starter or Starter()
    if starter.whole_experts and not load_model(model).num_experts:
        raise InputError(
            f"enable_expert_parallel is given, but {model} has no experts; leave it out",
            field="enable_expert_parallel",
            value=True,
        )
    placed = {
        role: _placed(model, device, role, starter.sizes(role, sizes), roles, devices_per_node)
        for role in dict.fromkeys(roles)
    }
    sheet = data_sheet(device)
    link = sheet.intra_node_link_bytes_per_s / 1e9
    assumed = "" if sheet.network_card_bytes_per_s else ", and so is the link between nodes"
    return {
        "description": f"{_described(model, device, roles, placed)}. Memory, "
        "bandwidth and links from the data sheet; latencies and host memory are "
        f"assumptions{assumed}.",
        "link_bw": [link, link, link_between_nodes(sheet)],
        "link_latency": [LINK_LATENCY_NS, LINK_LATENCY_NS, NODE_LATENCY_NS],
        "nodes": [
            {"cpu_mem": dict(HOST_MEMORY), "instances": on}
            for on in _on_nodes([placed[role] for role in roles], devices_per_node)
        ],
    }


@dataclass(frozen=True)
class _Placed:
    """The keys of an instance, its devices, and the nodes that it is on."""

    keys: dict[str, Any]
    devices: int
    nodes: int

    def on(self, device: str) -> str:
        """`4 H100`, or `16 H100 on 2 nodes`."""
        return f"{self.devices} {device}{f' on {self.nodes} nodes' if self.nodes > 1 else ''}"


def _placed(
    model: str,
    device: str,
    role: str | None,
    sizes: Sizes,
    roles: Sequence[str | None],
    devices_per_node: int,
) -> _Placed:
    nodes = _nodes_of(sizes, roles, devices_per_node)
    instance = _instance(model, device, sizes)
    if nodes > 1:
        instance["nnodes"] = nodes
    return _Placed(_with_role(instance, role, sizes.ep or 1), sizes.devices, nodes)


def _described(
    model: str,
    device: str,
    roles: Sequence[str | None],
    placed: Mapping[str | None, _Placed],
) -> str:
    """How many instances of each role there are, and on what."""
    counts = Counter(roles)
    if len({one.on(device) for one in placed.values()}) == 1:
        named = " + ".join(
            f"{count} {role}" if role else str(count) for role, count in counts.items()
        )
        return f"{named} x {model}, each on {placed[roles[0]].on(device)}"
    parts = (f"{count} {role} each on {placed[role].on(device)}" for role, count in counts.items())
    return f"{model}: {', '.join(parts)}"


def links_in_a_server(device: str) -> dict[str, float]:
    """What a file of one server states of its links where nothing but the data sheet is known: then
    measured collectives keep their times.
    """
    from llmsim.model.hardware import data_sheet

    link = data_sheet(device).intra_node_link_bytes_per_s / 1e9
    return {"link_bw": link, "link_latency": LINK_LATENCY_NS}


def link_between_nodes(sheet: "Hardware") -> float:
    """GB/s between nodes: a device's network card of its data sheet, else an assumption."""
    card = sheet.network_card_bytes_per_s
    return NODE_LINK_GB_PER_S if card is None else card / 1e9


def _nodes_of(sizes: Sizes, roles: Sequence[str | None], devices_per_node: int) -> int:
    """The fewest nodes that the devices of an instance fill evenly, stage by stage; raises
    InputError where there are none.
    """
    tp, needed = sizes.tp, sizes.devices
    if needed <= devices_per_node:
        return 1
    ranks = f" x --dp {sizes.dp}" if sizes.dp > 1 else ""
    split = f"an instance of --tp {tp} x --pp {sizes.pp}{ranks} needs {needed} devices, a node has "
    split += f"--devices-per-node {devices_per_node}"
    if {"attention", "ffn"} & set(roles):
        raise InputError(
            f"{split}, and attention and FFN instances are on one node each; lower the first or "
            "raise the last"
        )
    for nodes in range(-(-needed // devices_per_node), needed):
        each, left = divmod(needed, nodes)
        if not left and (each % tp == 0 or tp % each == 0):
            return nodes
    if devices_per_node > 1:
        raise InputError(
            f"{split}, and it fills no nodes evenly; lower the first or raise the last"
        )
    return needed


def _on_nodes(instances: Sequence[_Placed], devices_per_node: int) -> Iterator[list[Json]]:
    """The instances of each node, one node after the other; one over several nodes has its own."""
    here: list[Json] = []
    free = 0
    for one in instances:
        if here and (one.nodes > 1 or one.devices > free):
            yield here
            here = []
        if one.nodes > 1:
            yield [one.keys]
            yield from [[] for _ in range(one.nodes - 1)]
            continue
        free = (free if here else devices_per_node) - one.devices
        here.append(one.keys)
    if here:
        yield here


def _with_role(instance: dict[str, Any], role: str | None, ep: int) -> dict[str, Any]:
    """The instance with its role; the halves of layers have sizes of their own."""
    if role in ("attention", "ffn"):
        others = {k: v for k, v in instance.items() if k not in ("tp_size", "ep_size")}
        tp = instance["tp_size"]
        sizes = {"ffn_tp_size": tp // ep, "ffn_ep_size": ep}
        if role == "attention":
            sizes = {"attn_tp_size": tp}
        return {**others, "pd_type": role, "afd_group": "layers", **sizes}
    return instance if role is None else {**instance, "pd_type": role}


def _instance(model: str, device: str, sizes: Sizes) -> dict[str, Any]:
    from llmsim.model import Layout, load_model, operators, resolve_dtypes
    from llmsim.model.hardware import data_sheet

    tp, pp, ep, dp = sizes
    shape = load_model(model)
    if ep is not None and not shape.num_experts:
        raise InputError(f"--ep is {ep}; {model} has no experts, leave the option out")
    if dp == 1:
        operators(
            shape, Layout(tp, ep or 1), resolve_dtypes(shape)
        )  # raises where it cannot be split
    if pp > shape.num_layers:
        raise InputError(f"--pp is {pp}; {model} has {shape.num_layers} layers for so many stages")
    sheet = data_sheet(device)
    instance: dict[str, Any] = {
        "model_name": _from_anywhere(model),
        "hardware": _from_anywhere(device),
        "npu_mem": {
            "mem_size": round(sheet.memory_bytes / (1 << 30), 3),
            "mem_bw": sheet.memory_bandwidth_bytes_per_s / 1e9,
        },
        "tp_size": tp,
        "pp_size": pp,
    }
    if dp > 1:
        instance |= _data_parallel(sizes, has_experts=bool(shape.num_experts))
    elif shape.num_experts:
        instance["ep_size"] = ep or 1
    return instance


def _data_parallel(sizes: Sizes, *, has_experts: bool) -> dict[str, Any]:
    """The keys of data-parallel ranks; raises InputError where their experts are spread over some
    of the devices.
    """
    keys: dict[str, Any] = {"data_parallel_size": sizes.dp}
    if not has_experts:
        return keys
    shared = sizes.tp * sizes.dp
    if sizes.ep not in (None, 1, shared):
        raise InputError(
            f"--ep is {sizes.ep}, but --tp {sizes.tp} x --dp {sizes.dp} ranks share the experts; "
            f"give --ep {shared} for whole experts, or leave it out to cut each of them",
            field="ep",
            value=sizes.ep,
        )
    return {**keys, "enable_expert_parallel": sizes.ep == shared}


def _from_anywhere(name: str) -> str:
    """A path that holds wherever the cluster file is, which is where it looks first; a name as it
    is.
    """
    return (
        str(Path(name).resolve())
        if Path(name).is_file() or Path(name, "config.json").is_file()
        else name
    )
