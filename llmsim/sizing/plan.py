"""A plan: which instances of a model, laid out how, on how many devices."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from llmsim.api.cluster import LINK_LATENCY_NS, NODE_LATENCY_NS, link_between_nodes
from llmsim.config import EngineOverrides, parse_cluster, resolve
from llmsim.config.deployment import AfdRole, Deployment, Group, Node
from llmsim.config.engine.scheduler_kinds import SGLANG

Option = tuple[str, Any]


@dataclass(frozen=True, order=True)
class Shape:
    """How the devices of one instance split a model; the words are vLLM's."""

    tp: int = 1
    """Tensor-parallel devices of a pipeline stage, data-parallel ranks of the attention included.
    """
    pp: int = 1
    ep: int = 1
    """Ranks that hold whole experts; 1: every expert is cut over all ranks."""
    dp: int = 1
    """Data-parallel ranks of the attention among the `tp` devices."""
    ffn: int = 0
    """Devices of an FFN instance beside the `tp` ones, which run the attention of every layer then;
    0: the same devices run both.
    """
    attentions: int = 1
    ffns: int = 1
    """Attention instances of `tp` devices, and FFN instances of `ffn` devices, that run every layer
    together.
    """
    sequence_parallel: bool = False
    """Whether tensor-parallel ranks of the attention share the rows out between their layers, so
    that each row goes to the FFN and back once.
    """
    lanes: int = 0
    """Micro-batches of a batch where attention and FFN are apart; 0: the cluster file's default."""
    nodes: int = 1
    """Nodes that share the devices of an instance evenly, stage by stage and rank by rank; what has
    attention and FFN apart says 1, and its instances are on one node each.
    """

    @property
    def devices(self) -> int:
        """Devices of one instance; of all attention and FFN instances that run layers together."""
        return (self.tp * self.attentions + self.ffn * self.ffns) * self.pp

    @property
    def engines(self) -> int:
        """Data-parallel ranks of the attention, each with its scheduler and KV cache."""
        return self.dp * self.attentions

    @property
    def groups(self) -> int:
        """Groups of a run that the instance becomes: engines, and FFN instances."""
        return self.engines + (self.ffns if self.ffn else 0)

    @property
    def label(self) -> str:
        """`TP4`, `TP8 PP2 on 2 nodes`, `DP8 EP8`, `(3 attention TP2, 2 FFN TP8)`."""
        attention = self.tp // self.dp
        shown = {
            f"TP{attention}": attention > 1 or self.dp == 1,
            f"DP{self.dp}": self.dp > 1,
            f"PP{self.pp}": self.pp > 1,
            "SP": self.sequence_parallel,
            f"EP{self.ep}": self.ep > 1 and not self.ffn,
        }
        words = " ".join(word for word, here in shown.items() if here)
        words += f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return self._label_of_roles(words) if self.ffn else words

    def _label_of_roles(self, attention: str) -> str:
        """Instances of attention, whose layout is given, and of FFN."""
        attends, serves = (f"{n} " if n > 1 else "" for n in (self.attentions, self.ffns))
        cut = f"EP{self.ep}" if self.ep > 1 else f"TP{self.ffn}"
        lanes = f", {self.lanes} lanes" if self.lanes else ""
        return f"({attends}attention {attention}, {serves}FFN {cut}{lanes})"

    def instances(self, *, experts: bool) -> list["Part"]:
        """Its instances of the cluster file, those of attention first."""
        if not self.ffn:
            return [Part(self.devices, self.keys(experts=experts))]
        attention = {"attn_tp_size": self.tp // self.dp, "attn_dp_size": self.dp}
        if self.sequence_parallel:
            attention["enable_sequence_parallelism"] = True
        if self.lanes:
            attention["afd_micro_batches"] = self.lanes
        ffn = {"ffn_tp_size": self.ffn // self.ep, "ffn_ep_size": self.ep}
        return [
            *[Part(self.tp, {"pd_type": "attention", **attention})] * self.attentions,
            *[Part(self.ffn, {"pd_type": "ffn", **ffn})] * self.ffns,
        ]

    def keys(self, *, experts: bool) -> dict[str, int]:
        """The layout keys of an instance of the cluster file."""
        nodes = {"nnodes": self.nodes} if self.nodes > 1 else {}
        if self.dp > 1:
            return {
                "attn_tp_size": self.tp // self.dp,
                "attn_dp_size": self.dp,
                "ffn_tp_size": self.tp // self.ep,
                "ffn_ep_size": self.ep,
                **nodes,
            }
        sizes = {"tp_size": self.tp, "pp_size": self.pp, **nodes}
        return {**sizes, "ep_size": self.ep} if experts else sizes


@dataclass(frozen=True)
class Part:
    """An instance of the cluster file: its devices, the keys of its layout, and its role."""

    devices: int
    keys: dict[str, Any]


@dataclass(frozen=True, order=True)
class Pool:
    """Equal instances with one role: None does both, else `prefill` or `decode`."""

    shape: Shape
    count: int
    role: str | None = None

    @property
    def devices(self) -> int:
        """Devices of all instances."""
        return self.shape.devices * self.count

    @property
    def label(self) -> str:
        """`4 x TP2`, `2 x TP4 prefill`."""
        return f"{self.count} x {self.shape.label}" + (f" {self.role}" if self.role else "")


@dataclass(frozen=True)
class Plan:
    """A whole deployment of one model on one kind of device."""

    model: str
    device: str
    pools: tuple[Pool, ...]
    engine: tuple[Option, ...] = ()
    """Engine options that plans differ in, of every instance, in the words of the cluster file."""
    devices_per_node: int = 8
    server: tuple[Option, ...] = ()
    """Options that say which engine serves, such as its profile; empty: vLLM as by default."""

    @property
    def devices(self) -> int:
        """Devices of the whole deployment."""
        return sum(pool.devices for pool in self.pools)

    @property
    def nodes(self) -> int:
        """Nodes that its instances are on."""
        return max(max(on) + pool.shape.nodes for on, pool in self._placed())

    @property
    def spans_nodes(self) -> bool:
        """Whether an instance is on several nodes; parts that are on one node each are none."""
        return any(pool.shape.nodes > 1 for pool in self.pools)

    @property
    def architecture(self) -> str:
        """`colocated`, `pd`, or `afd` where attention and FFN are on devices of their own."""
        if any(pool.shape.ffn for pool in self.pools):
            return "afd"
        return "pd" if any(pool.role for pool in self.pools) else "colocated"

    @property
    def runs_sglang(self) -> bool:
        """Whether SGLang serves, and not vLLM."""
        return ("scheduler", SGLANG) in self.server

    @property
    def label(self) -> str:
        """Its pools in one line, such as `2 x TP4 prefill + 3 x TP4 decode`."""
        return " + ".join(pool.label for pool in self.pools)

    def with_counts(self, *counts: int) -> "Plan":
        """The same with other numbers of instances, pool by pool."""
        pools = zip(self.pools, counts, strict=True)
        return dataclasses.replace(
            self, pools=tuple(dataclasses.replace(pool, count=count) for pool, count in pools)
        )

    def fields(self) -> dict[str, Any]:
        """The keys of its cluster file; instances fill one node after the other."""
        nodes: dict[int, list[dict[str, Any]]] = {i: [] for i in range(self.nodes)}
        for number, (on, pool) in enumerate(self._placed()):
            for node, keys in zip(on, self._instances(pool, number), strict=True):
                nodes[node].append(keys)
        link, between = _links_gb_per_s(self.device)
        options = dict((*self.server, *self.engine))
        return {
            "description": f"{self.model}: {self.label} on {self.devices} {self.device}. Links "
            "within and between nodes are the data sheet's, or 50 GB/s between them where it has "
            "no network card; latencies are assumptions.",
            "link_bw": [link, link, between],
            "link_latency": [LINK_LATENCY_NS, LINK_LATENCY_NS, NODE_LATENCY_NS],
            **({"engine": options} if options else {}),
            "nodes": [{"instances": instances} for instances in nodes.values()],
        }

    def deployment(self) -> Deployment:
        """What its cluster file resolves to, made from one instance of each pool."""
        return _expanded(self)

    def kind_key(self) -> tuple[Any, ...]:
        """What the tables of its groups depend on, beside the groups themselves."""
        return (self.model, self.device, self.devices_per_node, self.server)

    def _placed(self) -> Iterator[tuple[tuple[int, ...], Pool]]:
        """Every instance with the nodes of its parts: the first node with enough free devices after
        the last. An instance over several nodes begins on a free one. Attention and FFN that one
        node cannot hold are on nodes of their own.
        """
        at = _Filling(self.devices_per_node)
        for pool in self.pools:
            parts = pool.shape.instances(experts=_has_experts(self.model))
            whole = self._on_one_node(pool.shape)
            for _ in range(pool.count):
                if pool.shape.nodes > 1:
                    yield (at.take_nodes(pool.shape.nodes),), pool
                elif whole:
                    yield (at.take(pool.shape.devices),) * len(parts), pool
                else:
                    yield tuple(_apart(at, parts)), pool

    def _instances(self, pool: Pool, number: int) -> list[dict[str, Any]]:
        from llmsim.api.cluster import _from_anywhere

        named: dict[str, Any] = {
            "model_name": _from_anywhere(self.model),
            "hardware": _from_anywhere(self.device),
        }
        parts = pool.shape.instances(experts=_has_experts(self.model))
        if pool.shape.ffn:
            return [{**named, **part.keys, "afd_group": afd_name(number)} for part in parts]
        role = {"pd_type": pool.role} if pool.role else {}
        return [{**named, **part.keys, **role} for part in parts]

    def _smallest_pool(self, pool: Pool) -> Pool:
        """One instance; with attention and FFN apart one of each role, if these are on nodes of
        their own as all of them are.
        """
        one = dataclasses.replace(pool, count=1)
        if not pool.shape.ffn:
            return one
        shape = dataclasses.replace(pool.shape, attentions=1, ffns=1)
        is_alike = self._on_one_node(shape) == self._on_one_node(pool.shape)
        return dataclasses.replace(one, shape=shape) if is_alike else one

    def _on_one_node(self, shape: Shape) -> bool:
        return shape.devices <= self.devices_per_node


@dataclass
class _Filling:
    """Nodes that fill up one after the other."""

    devices_per_node: int
    node: int = 0
    used: int = 0

    def take(self, devices: int) -> int:
        """The node of so many devices."""
        if self.used + devices > self.devices_per_node:
            self.next()
        self.used += devices
        return self.node

    def take_nodes(self, nodes: int) -> int:
        """The first of so many nodes, which nothing else uses."""
        self.next()
        first, self.node = self.node, self.node + nodes
        return first

    def next(self) -> None:
        """Leaves the rest of a node that has any instance free."""
        if self.used:
            self.node, self.used = self.node + 1, 0


def _apart(at: _Filling, parts: list[Part]) -> Iterator[int]:
    """The nodes of attention and FFN instances, each role on nodes of its own."""
    for role in ("attention", "ffn"):
        at.next()
        for part in parts:
            if part.keys["pd_type"] == role:
                yield at.take(part.devices)


@lru_cache(maxsize=256)
def _links_gb_per_s(device: str) -> tuple[float, float]:
    """Within a node, and between nodes."""
    from llmsim.model.hardware import data_sheet

    sheet = data_sheet(device)
    return sheet.intra_node_link_bytes_per_s / 1e9, link_between_nodes(sheet)


@lru_cache(maxsize=256)
def _has_experts(model: str) -> bool:
    from llmsim.model import load_model

    return bool(load_model(model).num_experts)


@lru_cache(maxsize=512)
def _smallest(plan: Plan) -> Deployment:
    """The deployment with one instance of each pool, from its cluster file."""
    import json

    from llmsim.lowering.device_memory import sheet_memory

    cluster = parse_cluster(json.dumps(plan.fields()), "cluster")
    return resolve(cluster, EngineOverrides(), sheet=sheet_memory("cluster"))


def afd_name(number: int) -> str:
    """The `afd_group` of an attention and an FFN instance."""
    return f"afd{number}"


def _expanded(plan: Plan) -> Deployment:
    """The deployment of all instances: copies of the groups of one instance of each pool, and where
    attention and FFN are apart, of one of each role.
    """
    small = _smallest(dataclasses.replace(plan, pools=tuple(map(plan._smallest_pool, plan.pools))))
    made = _groups_of_pools(plan, small)
    groups: list[Group] = []
    counts: dict[int, int] = {}
    for number, (on, pool) in enumerate(plan._placed()):
        first, parts = len(groups), made[pool]
        for node, part in zip(on, parts, strict=True):
            at = counts.get(node, 0)
            counts[node] = at + 1
            path = f"nodes[{node}].instances[{at}]"
            for group in part:
                dp_group = path if group.dp_group is not None else None
                placed = {"index": len(groups), "node": node + group.node - part[0].node}
                groups.append(replace(group, **placed, field_path=path, dp_group=dp_group))
        if pool.shape.ffn:
            groups[first:] = _together(groups[first:], number)
    nodes = tuple(
        Node(i, None, tuple(group.index for group in groups if group.node == i))
        for i in range(plan.nodes)
    )
    return replace(small, nodes=nodes, groups=tuple(groups))


def _groups_of_pools(plan: Plan, small: Deployment) -> dict[Pool, list[tuple[Group, ...]]]:
    """The groups of one instance of each pool, instance by instance of the cluster file."""
    by_path = [
        tuple(group for group in small.groups if group.field_path == path)
        for path in dict.fromkeys(group.field_path for group in small.groups)
    ]
    made: dict[Pool, list[tuple[Group, ...]]] = {}
    for pool in plan.pools:
        one = plan._smallest_pool(pool).shape
        attentions = one.attentions if one.ffn else 1
        parts = attentions + (one.ffns if one.ffn else 0)
        first, others, by_path = by_path[:attentions], by_path[attentions:parts], by_path[parts:]
        shape = pool.shape
        if shape == one:
            made[pool] = [*first, *others]
        else:
            made[pool] = first * shape.attentions + others * shape.ffns
    return made


def _together(groups: list[Group], number: int) -> list[Group]:
    """Attention and FFN groups that run every layer together, with their own indices."""
    roles: dict[str, AfdRole] = {}
    sides: dict[str, list[int]] = {"attention": [], "ffn": []}
    for group in groups:
        assert group.afd is not None, "its pool has a shape with FFN devices"
        roles[group.afd.domain] = group.afd
        sides[group.afd.domain].append(group.index)
    of_all = {side: tuple(indices) for side, indices in sides.items()}
    roles = {side: replace(role, name=afd_name(number), **of_all) for side, role in roles.items()}
    return [replace(group, afd=roles[group.afd.domain]) for group in groups if group.afd]


def total_price(plan: Plan, prices: Mapping[str, float | None]) -> float | None:
    """USD per hour of all devices; None where the device has no price."""
    each = prices.get(plan.device)
    return None if each is None else each * plan.devices
