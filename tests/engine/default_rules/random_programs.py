"""Random programs of unlike NPUs, networks of every kind, and the links between them, for tests of
default rules.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from engine import chakra_file as ck

COLLECTIVES = (
    ck.ALL_REDUCE,
    ck.REDUCE,
    ck.ALL_GATHER,
    ck.GATHER,
    ck.SCATTER,
    ck.BROADCAST,
    ck.ALL_TO_ALL,
    ck.REDUCE_SCATTER,
    ck.BARRIER,
)
SIZES = (0, 1, 7, 4096, 100_003, 1 << 20)


@dataclass
class Item:
    """A node of one NPU; `deps` are numbers of the same NPU's nodes."""

    number: int
    kind: int
    deps: list[int]
    micros: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)

    def record(self, scale: int = 1) -> bytes:
        """The node's record, its number and its parents' times `scale`."""
        deps = [scale * dep for dep in self.deps]
        return ck.node(scale * self.number, self.kind, deps, self.micros, **self.attributes)


@dataclass
class Program:
    """What every NPU does; it always ends, because whatever is joined was made in one order."""

    items: list[list[Item]]
    groups: dict[str, list[int]]

    def traces(self, rng: random.Random | None = None, scale: int = 1) -> list[list[bytes]]:
        """Records by NPU; with `rng` in any order in the file."""
        out = []
        for items in self.items:
            records = [item.record(scale) for item in items]
            if rng is not None:
                rng.shuffle(records)
            out.append(records)
        return out


def program(rng: random.Random, npus: int, memory: bool = False, chained: bool = False) -> Program:
    """Compute, messages, collectives of groups and of all, accesses to memory, each after some
    earlier nodes.

    `chained`: compute nodes of an NPU one after another, so that no choice between ready ones is
    left.
    """
    items: list[list[Item]] = [[] for _ in range(npus)]
    last_compute: list[int | None] = [None] * npus
    groups = {}
    for number in range(1, rng.randint(1, 4)):
        groups[str(number)] = rng.sample(range(npus), rng.randint(1, npus))

    def add(npu: int, kind: int, micros: int = 0, **attributes: Any) -> None:
        before = [item.number for item in items[npu]]
        deps = set(rng.sample(before, min(len(before), rng.choice((0, 1, 1, 2)))))
        number = len(before) + 1
        if kind == ck.COMP and chained:
            if last_compute[npu] is not None:
                deps.add(int(last_compute[npu] or 0))
            last_compute[npu] = number
        items[npu].append(Item(number, kind, sorted(deps), micros, attributes))

    for tag in range(rng.randint(3, 25)):
        what = rng.choice(
            ("comp", "message", "message", "collective", "memory" if memory else "comp")
        )
        size = rng.choice(SIZES)
        if what == "comp":
            add(
                rng.randrange(npus),
                ck.COMP,
                rng.randint(0, 60),
                is_cpu_op=not chained and rng.random() < 0.2,
            )
        elif what == "memory":
            add(rng.randrange(npus), rng.choice((ck.LOAD, ck.STORE)), tensor_size=size)
        elif what == "message":
            source, target = rng.sample(range(npus), 2)
            add(source, ck.SEND, comm_size=size, comm_dst=target, comm_tag=tag)
            add(target, ck.RECV, comm_size=size, comm_src=source, comm_tag=tag)
        else:
            kind = rng.choice(COLLECTIVES)
            name = rng.choice(["", *groups])
            members = groups[name] if name else list(range(npus))
            more: dict[str, Any] = {"pg_name": name} if name else {}
            if kind in (ck.REDUCE, ck.GATHER, ck.SCATTER, ck.BROADCAST):
                more["root_rank"] = rng.randrange(len(members))
            for npu in members:
                add(npu, ck.COLL, comm_type=kind, comm_size=size, **more)
    return Program(items, groups)


def regular_network(rng: random.Random) -> dict[str, Any]:
    """One to three dimensions of any kind."""
    dims = rng.choice((1, 1, 2, 3))
    sizes = [rng.randint(2, 8 if dims == 1 else 4 if dims == 2 else 3) for _ in range(dims)]
    return {
        "topology": [rng.choice(("Ring", "Switch", "FullyConnected")) for _ in sizes],
        "npus_count": sizes,
        "bandwidth": [rng.choice((1, 12.5, 50, 400)) for _ in sizes],
        "latency": [rng.choice((0, 30, 500.25)) for _ in sizes],
    }


def listed_network(rng: random.Random) -> dict[str, Any]:
    """Leaves and spines with limits, spread and parallel cables; or devices that relay, in any
    connected graph.
    """
    npus = rng.randint(2, 9)

    def link(a: str, b: str) -> dict[str, Any]:
        speed, latency = rng.choice((1, 12.5, 50, 400)), rng.choice((0, 30, 500.25))
        return {
            "a": a,
            "b": b,
            "bandwidth_gb_per_s": speed,
            "latency_ns": latency,
            "count": rng.choice((1, 1, 2)),
        }

    if rng.random() < 0.3:
        links = [link(str(npu), str(rng.randrange(npu))) for npu in range(1, npus)]
        seen = {(one["a"], one["b"]) for one in links}
        for _ in range(rng.randint(0, npus)):
            a, b = sorted(rng.sample(range(npus), 2), reverse=True)
            if (str(a), str(b)) not in seen:
                seen.add((str(a), str(b)))
                links.append(link(str(a), str(b)))
        return {"devices": npus, "devices_relay": True, "links": links}
    leaves, spines = rng.randint(1, 3), rng.randint(1, 3)
    switches = []
    for name in [f"leaf{i}" for i in range(leaves)] + [f"spine{i}" for i in range(spines)]:
        one: dict[str, Any] = {"name": name}
        if rng.random() < 0.4:
            one["bisection_gb_per_s"] = rng.choice((10, 100))
        if rng.random() < 0.4:
            one["spread"] = rng.randint(1, 3)
        switches.append(one)
    links = [link(str(npu), f"leaf{rng.randrange(leaves)}") for npu in range(npus)]
    links += [link(f"leaf{i}", f"spine{j}") for i in range(leaves) for j in range(spines)]
    return {"devices": npus, "switches": switches, "links": links}


def num_npus(network: dict[str, Any]) -> int:
    """Of either kind of network."""
    if "devices" in network:
        return int(network["devices"])
    total = 1
    for size in network["npus_count"]:
        total *= size
    return total


def system(rng: random.Random, network: dict[str, Any]) -> dict[str, Any]:
    """Any algorithm per kind and dimension."""
    dims = len(network.get("npus_count", [0]))
    choices = {
        "all-reduce": ("ring", "direct", "direct2", "halvingDoubling", "doubleBinaryTree"),
        "all-gather": ("ring", "direct", "direct3", "halvingDoubling"),
        "reduce-scatter": ("ring", "direct", "direct1", "halvingDoubling"),
        "all-to-all": ("ring", "direct", "direct2"),
    }
    out: dict[str, Any] = {}
    for kind, names in choices.items():
        # Two trees have no reduce-scatter: only the last dimension of a plan, or `baseline`, can
        # use them.
        picked = [rng.choice(names) for _ in range(dims)]
        out[f"{kind}-implementation"] = [
            "ring" if d + 1 < dims and "Tree" in n else n for d, n in enumerate(picked)
        ]
    out["preferred-dataset-splits"] = rng.choice((1, 1, 3, 4))
    out["endpoint-delay"] = rng.choice((0, 10))
    if rng.random() < 0.3:
        out["collective-optimization"] = rng.choice(("baseline", "localBWAware"))
    return out
