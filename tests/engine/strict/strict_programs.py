"""Random cases for strict rules: networks, configurations, groups and programs of every kind that
upstream can run.

python -m engine.strict.strict_programs FIRST_SEED COUNT EXECUTABLE

from tests/: the fast executor against the slow one.
"""

import math
import random
import sys
from pathlib import Path
from typing import Any

from engine import chakra_file as ck
from engine.command import run_case
from engine.strict import slow_statistics
from engine.strict.seeds import compare_seeds
from engine.strict.slow_strict import Run

KINDS = {
    ck.ALL_REDUCE: "all-reduce",
    ck.ALL_GATHER: "all-gather",
    ck.REDUCE_SCATTER: "reduce-scatter",
    ck.ALL_TO_ALL: "all-to-all",
}


class Program:
    """Draws a case and writes it into `folder`; `backend` and `flags` say how to run it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.backend = self.draw.choice(["unaware", "unaware", "aware"])
        self.sizes = self._sizes()
        self.npus = math.prod(self.sizes)
        self.groups = self._groups()
        self.first_id = self.draw.choice([0, 1, 1, 2**32, 2**64 - 1000])
        self.splits = self.draw.choice([1, 1, 2, 3, 4, 5])
        self.flags = self._flags()
        system = self._system()
        self.roofline, self.custom = system["roofline-enabled"], (folder / "custom.0.et").exists()
        self.memory = self._memory()
        if self.custom:  # ranks are places in the sorted group
            self.groups = {number: sorted(members) for number, members in self.groups.items()}
        traces = self._traces()
        folder.mkdir(parents=True, exist_ok=True)
        groups = {str(number): members for number, members in self.groups.items()}
        ck.write_case(folder, traces, self._network(), system, self.memory, groups or None)

    def _sizes(self) -> list[int]:
        if self.backend == "aware":
            return [self.draw.choice([3, 4, 4, 5, 6, 7, 8, 8, 12])]
        count = self.draw.choice([1, 1, 2, 2, 3])
        return [
            self.draw.choice([2, 3, 4, 4, 5, 8] if count < 3 else [2, 2, 3, 4])
            for _ in range(count)
        ]

    def _groups(self) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for number in range(1, self.draw.choice([0, 0, 2, 4]) + 1):
            size = self.npus if self.draw.random() < 0.15 else self.draw.randint(2, self.npus)
            if self.draw.random() < 0.4:
                size = 1 << (size.bit_length() - 1)
            groups[number] = self.draw.sample(range(self.npus), size)
        return groups

    def _flags(self) -> tuple[str, ...]:
        flags = []
        if self.draw.random() < 0.4:
            flags.append(f"--num-queues-per-dim={self.draw.randint(1, 5)}")
        if self.draw.random() < 0.3:
            flags.append(f"--injection-scale={self.draw.choice([0.5, 1.7, 3])}")
        if self.draw.random() < 0.25:
            flags.append("--rendezvous-protocol=true")
        return tuple(flags)

    def _network(self) -> dict[str, Any]:
        shapes = ["Ring", "FullyConnected", "Switch"]
        return {
            "topology": [self.draw.choice(shapes) for _ in self.sizes],
            "npus_count": self.sizes,
            "bandwidth": [self.draw.choice([0.5, 12.5, 50, 333.3]) for _ in self.sizes],
            "latency": [self.draw.choice([0, 0.5, 100, 500.25, 20000]) for _ in self.sizes],
        }

    def _algorithms(self, kind: int) -> list[str]:
        """One per dimension, or fewer; of those that can carry out their phase on that
        many NPUs.
        """
        flat = ["oneRing", "oneDirect", "oneDirect2"]
        if kind != ck.ALL_TO_ALL and self.npus.bit_count() == 1 and not self.groups:
            flat.append("oneHalvingDoubling")
        if self.draw.random() < 0.15:
            return [self.draw.choice(flat)]
        count = (
            len(self.sizes) if self.draw.random() < 0.8 else self.draw.randint(1, len(self.sizes))
        )
        chosen = []
        for size in self.sizes[:count]:
            able = ["ring", "ring", "direct", "direct1", "direct2", "direct3"]
            whole = not self.groups or count > 1  # no smaller group gets the algorithm
            halves = whole or all(len(members).bit_count() == 1 for members in self.groups.values())
            if size.bit_count() == 1 and halves and kind != ck.ALL_TO_ALL:
                able += ["halvingDoubling"] * 3
            if size.bit_count() == 1 and whole:
                able += ["doubleBinaryTree"] * (3 if kind == ck.ALL_REDUCE else 1)
            chosen.append(self.draw.choice(able))
        return chosen

    def _system(self) -> dict[str, Any]:
        plan = self.draw.choice([None, "baseline", "localBWAware", "localBWAware"])
        system: dict[str, Any] = {
            "preferred-dataset-splits": self.splits,
            "active-chunks-per-dimension": self.draw.choice([1, 1, 2, 3, 8]),
            "endpoint-delay": self.draw.choice([0, 1, 7, 10, 300]),
            "local-mem-bw": self.draw.choice([0.5, 50, 1600]),
            "scheduling-policy": self.draw.choice(["LIFO", "FIFO", "EXPLICIT"]),
            "roofline-enabled": int(self.draw.random() < 0.25),
            "peak-perf": self.draw.choice([0.1, 100]),
        }
        if not system["roofline-enabled"]:
            system["replay-only"] = int(self.draw.random() < 0.06)
        if plan is not None:
            system["collective-optimization"] = plan
        for kind, name in KINDS.items():
            system[f"{name}-implementation"] = self._algorithms(kind)
        if self.splits == 1 and self.draw.random() < 0.3:
            system["all-gather-implementation-custom"] = [str(self._custom_files())]
        if self.splits == 1 and self.draw.random() < 0.1:
            system["per-node-custom-implementation"] = str(self.folder / "by_node.yml")
            self._custom_files()
            numbers = range(self.first_id, self.first_id + 1000)
            (self.folder / "by_node.yml").write_text(
                "".join(f"{n}: {self.folder / 'custom'}\n" for n in numbers)
            )
        return system

    def _custom_files(self) -> Path:
        """Every rank of the smallest set sends around a ring, computes between, and repeats; for
        all and for groups.
        """
        prefix = self.folder / "custom"
        self.folder.mkdir(parents=True, exist_ok=True)
        ranks = min([self.npus, *map(len, self.groups.values())])
        rounds, size = self.draw.randint(1, 3), self.draw.choice([1, 8192, 70_000])
        for rank in range(self.npus):
            nodes: list[bytes] = []
            for step in range(rounds if rank < ranks else 0):
                number, deps = len(nodes) + 1, [len(nodes)] if nodes else []
                nodes.append(ck.node(number, ck.COMP, deps, self.draw.choice([0, 1, 3])))
                to, source = (rank + 1) % ranks, (rank - 1) % ranks
                nodes.append(
                    ck.node(
                        number + 1,
                        ck.SEND,
                        [number],
                        comm_size=size,
                        comm_dst=to,
                        comm_tag=step % 2,
                    )
                )
                nodes.append(
                    ck.node(
                        number + 2,
                        ck.RECV,
                        deps,
                        comm_size=size,
                        comm_src=source,
                        comm_tag=step % 2,
                    )
                )
                nodes.append(
                    ck.node(number + 3, ck.COMP, [number + 1, number + 2], self.draw.choice([0, 1]))
                )
            nodes = nodes or [ck.node(1, ck.COMP, micros=2)]
            prefix.with_suffix(f".{rank}.et").write_bytes(ck.trace(nodes))
        return prefix

    def _memory(self) -> dict[str, Any]:
        per_node = self.draw.choice(
            [size for size in range(1, self.npus + 1) if self.npus % size == 0]
        )
        return {
            "memory-type": self.draw.choice(
                ["PER_NPU_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL"]
            ),
            "remote-mem-latency": self.draw.choice([0, 100, 5000]),
            "remote-mem-bw": self.draw.choice([1, 7, 100]),
            "num-nodes": self.npus // per_node,
            "num-npus-per-node": per_node,
        }

    def _traces(self) -> list[list[bytes]]:
        self.steps: list[list[tuple[int, dict[str, Any], int]]] = [
            [] for _ in range(self.npus)
        ]  # type, attributes, us
        for _ in range(self.draw.randint(3, 14)):
            what = self.draw.choice(
                ["all", "all", "group", "group", "message", "message", "each", "each", "each"]
            )
            if what == "message":
                self._message()
            elif what == "each":
                for npu in range(self.npus):
                    if self.draw.random() < 0.8:
                        self._of_one(npu)
            else:
                self._collective(what == "group")
        return [
            self._nodes(steps or [(ck.COMP, {"num_ops": 1, "tensor_size": 1}, 1)])
            for steps in self.steps
        ]

    def _collective(self, grouped: bool) -> None:
        kind = self.draw.choice([*KINDS, *KINDS, *KINDS, ck.BROADCAST])
        sizes = [7, self.npus, 1000, 12_345, 65_536, 1_000_003]
        size = max(self.draw.choice(sizes), self.splits if kind == ck.ALL_GATHER else 0)
        attributes: dict[str, Any] = {"comm_type": kind, "comm_size": size}
        members = list(range(self.npus))
        if grouped and self.groups:
            number, members = self.draw.choice(list(self.groups.items()))
            attributes["pg_name"] = str(number)
        elif self.draw.random() < 0.1:
            attributes["pg_name"] = self.draw.choice(["", "0"])
        if self.draw.random() < 0.15:
            attributes["involved_dim"] = self._involved()
        micros = self.draw.choice([0, 2])
        for npu in members:
            self.steps[npu].append((ck.COLL, attributes, micros))

    def _involved(self) -> list[bool]:
        """The first dimension takes part, so that no list of algorithms leaves none."""
        return [True, *(self.draw.random() < 0.5 for _ in range(3))]

    def _message(self) -> None:
        source, target = self.draw.sample(range(self.npus), 2)
        for _ in range(self.draw.randint(1, 3)):
            size, tag = (
                self.draw.choice([1, 8192, 50_000]),
                self.draw.choice([0, 1, 500_000_000, 500_000_001]),
            )
            self.steps[source].append(
                (ck.SEND, {"comm_size": size, "comm_dst": target, "comm_tag": tag}, 3)
            )
            self.steps[target].append(
                (ck.RECV, {"comm_size": size, "comm_src": source, "comm_tag": tag}, 3)
            )

    def _of_one(self, npu: int) -> None:
        kind = self.draw.choice([ck.COMP, ck.COMP, ck.COMP, ck.LOAD, ck.STORE, ck.INVALID])
        attributes: dict[str, Any] = {"is_cpu_op": kind == ck.COMP and self.draw.random() < 0.3}
        if kind in (ck.LOAD, ck.STORE):
            attributes["tensor_size"] = self.draw.choice([0, 1, 999, 100_000])
        elif kind == ck.COMP and self.roofline:
            attributes |= {"num_ops": self.draw.choice([1, 10**6, 10**9])}
            attributes |= {"tensor_size": self.draw.choice([0, 1, 1000, 10**6])}
        self.steps[npu].append((kind, attributes, self.draw.choice([0, 0, 1, 5, 40])))

    def _nodes(self, steps: list[tuple[int, dict[str, Any], int]]) -> list[bytes]:
        """Ids and the order of the file are random; a collective follows the one before, else
        parents are random.
        """
        ids = self.draw.sample(range(self.first_id, self.first_id + 1000), len(steps))
        nodes: list[bytes] = []
        collective: int | None = None
        for at, (kind, attributes, micros) in enumerate(steps):
            parents = {
                self.draw.choice(ids[:at]) for _ in range(self.draw.choice([0, 1, 1, 2, 3])) if at
            }
            if kind == ck.COLL:
                parents |= {collective} if collective is not None else set()
                collective = ids[at]
            listed = sorted(parents)
            self.draw.shuffle(listed)
            data = [parent for parent in listed if self.draw.random() < 0.7]
            control = [
                parent for parent in listed if parent not in data or self.draw.random() < 0.2
            ]
            nodes.append(ck.node(ids[at], kind, data, micros, ctrl_deps=control, **attributes))
        self.draw.shuffle(nodes)
        return nodes


def difference(seed: int, folder: Path, executable: Path) -> str:
    """What the two executors do not agree on; nothing where they do."""
    program = Program(seed, folder)
    run = Run(folder, program.backend == "aware", program.flags)
    slow = run.times
    fast = run_case(executable, folder, folder, program.backend, program.flags)
    if fast.report is None:
        return f"seed {seed}: exit {fast.exit_code} {fast.errors}"
    nodes = sum(map(len, program.steps)) + sum(not steps for steps in program.steps)
    if fast.exit_code != (0 if len(slow) == nodes else 3):
        return f"seed {seed}: exit {fast.exit_code} with {len(slow)} of {nodes} nodes ended"
    wrong = {
        node: (slow.get(node), fast.times().get(node)) for node in slow.keys() | fast.times().keys()
    }
    wrong = {node: both for node, both in wrong.items() if both[0] != both[1]}
    if wrong:
        return f"seed {seed}: (slow, fast) {dict(sorted(wrong.items())[:6])}"
    for npu, said in zip(run.npus, fast.report["npus"], strict=True):
        told = (said["finish_ns"], said["exposed_comm_ns"], said["statistics"])
        ours = (
            npu.finish,
            slow_statistics.exposed(npu),
            slow_statistics.times(npu) | slow_statistics.averages(npu),
        )
        if ours != told:
            return f"seed {seed}: NPU {npu.npu}: {ours} is not {told}"
    return ""


if __name__ == "__main__":
    sys.exit(compare_seeds(difference, "programs", sys.argv[1:]))
