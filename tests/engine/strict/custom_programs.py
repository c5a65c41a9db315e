"""Random custom collectives: messages of any pairs of ranks, with computes and waits between, whose
steps are numbered and written in any order.

python -m engine.strict.custom_programs FIRST_SEED COUNT EXECUTABLE

from tests/: the fast executor against the slow one.
"""

import random
import sys
from pathlib import Path
from typing import Any

from engine import chakra_file as ck
from engine.command import run_case
from engine.strict.seeds import compare_seeds
from engine.strict.slow_strict import Run

WAITS_FOR_EVER = 3
"""Exit code of a run some of whose nodes never end."""
Step = tuple[int, dict[str, Any], int]
"""Type, attributes, microseconds."""


class CustomProgram:
    """Draws a case into `folder`; `backend` and `flags` say how to run it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.backend = self.draw.choice(["aware", "aware", "unaware"])
        self.flags = ("--rendezvous-protocol=true",) if self.draw.random() < 0.15 else ()
        self.npus = self.draw.choice([3, 4, 5, 7, 8, 8, 9, 12])
        self.ranks = self.npus
        groups: dict[str, list[int]] = {}
        if self.draw.random() < 0.3:
            self.ranks = self.draw.randint(2, self.npus)
            groups["3"] = sorted(self.draw.sample(range(self.npus), self.ranks))
        folder.mkdir(parents=True, exist_ok=True)
        for rank, steps in enumerate(self._steps()):
            (folder / f"alg.{rank}.et").write_bytes(ck.trace(self._nodes(steps)))
        shape = self.draw.choice(["Ring", "Switch", "Switch", "FullyConnected"])
        network = ck.network(shape, self.npus, self.draw.choice([5, 50, 741]), 500)
        kind = self.draw.choice(["all-reduce", "all-to-all"])
        system = {f"{kind}-implementation-custom": [str(folder / "alg")]}
        traces = self._traces(kind, groups)
        ck.write_case(folder, traces, network, system, groups=groups or None)

    def _steps(self) -> list[list[Step]]:
        """Per rank. In the order of the messages each rank can do its part, so none waits for
        ever.
        """
        steps: list[list[Step]] = [[] for _ in range(self.ranks)]
        pairs = [(a, b) for a in range(self.ranks) for b in range(self.ranks) if a != b]
        if self.draw.random() < 0.5:  # all to all
            self.draw.shuffle(pairs)
        else:
            pairs = self.draw.choices(pairs, k=self.draw.randint(1, 5 * self.ranks))
        sizes = self.draw.choice([[65_536], [1, 8192, 50_000], range(1, 400_000)])
        for source, target in pairs:
            both = {"comm_size": self.draw.choice(sizes), "comm_tag": self.draw.randint(0, 2)}
            steps[source].append((ck.SEND, both | {"comm_dst": target}, 0))
            steps[target].append((ck.RECV, both | {"comm_src": source}, 0))
            if self.draw.random() < 0.2:
                steps[self.draw.choice((source, target))].append(
                    (ck.COMP, {}, self.draw.choice([0, 1, 7]))
                )
        return steps

    def _nodes(self, steps: list[Step]) -> list[bytes]:
        """Numbers and the order of the file are drawn; a step may wait for earlier ones of its
        rank.
        """
        steps = steps or [(ck.COMP, {}, 1)]
        spread, first = self.draw.choice([1, 1, 3, 13, 1000]), self.draw.choice([0, 1, 2**40])
        ids = [first + spread * at for at in range(len(steps))]
        if self.draw.random() < 0.5:
            self.draw.shuffle(ids)
        waits = self.draw.choice([0.0, 0.1, 0.5])
        nodes = []
        for at, (kind, attributes, micros) in enumerate(steps):
            count = self.draw.randint(1, 3) if at and self.draw.random() < waits else 0
            parents = sorted(set(self.draw.choices(ids[:at], k=count))) if count else []
            nodes.append(ck.node(ids[at], kind, parents, micros, **attributes))
        if self.draw.random() < 0.5:
            self.draw.shuffle(nodes)
        return nodes

    def _traces(self, kind: str, groups: dict[str, list[int]]) -> list[list[bytes]]:
        """Every rank computes for a while, then joins the collective, perhaps twice."""
        number = ck.ALL_REDUCE if kind == "all-reduce" else ck.ALL_TO_ALL
        attributes: dict[str, Any] = {"comm_type": number, "comm_size": 4096}
        if groups:
            attributes["pg_name"] = "3"
        members = groups.get("3", list(range(self.npus)))
        again = self.draw.randint(1, 2)
        traces = []
        for npu in range(self.npus):
            nodes = [ck.node(1, ck.COMP, micros=self.draw.randint(0, 3))]
            for call in range(again if npu in members else 0):
                nodes.append(ck.node(call + 2, ck.COLL, [call + 1], **attributes))
            traces.append(nodes)
        return traces


def difference(seed: int, folder: Path, executable: Path) -> str:
    """Nodes on which the two executors do not agree; nothing where they do. Some wait for ever:
    with a rendezvous, or where messages of a pair with one tag meet in another order.
    """
    program = CustomProgram(seed, folder)
    slow = Run(folder, program.backend == "aware", program.flags).times
    fast = run_case(executable, folder, folder, program.backend, program.flags)
    if fast.report is None or fast.exit_code not in (0, WAITS_FOR_EVER):
        return f"seed {seed}: exit {fast.exit_code} {fast.errors}"
    wrong = {
        node: (slow.get(node), fast.times().get(node))
        for node in slow.keys() | fast.times().keys()
        if slow.get(node) != fast.times().get(node)
    }
    return f"seed {seed}: (slow, fast) {dict(sorted(wrong.items())[:6])}" if wrong else ""


if __name__ == "__main__":
    sys.exit(compare_seeds(difference, "collectives", sys.argv[1:]))
