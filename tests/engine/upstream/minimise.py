"""Makes a case smaller as long as the two programs still differ on it."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from engine.upstream.case import Case
from llmsim.export.chakra import TraceNode

Differs = Callable[[Case], bool]
Place = tuple[int, int]
"""NPU, place in its trace."""
MOST_TRIALS = 1500
SIMPLE = {"preferred-dataset-splits": 1, "active-chunks-per-dimension": 1, "endpoint-delay": 10}


def without(case: Case, gone: Iterable[Place]) -> Case:
    """Children of a node that goes wait for its parents; an NPU keeps one node at least."""
    places = set(gone)
    traces = []
    for npu, nodes in enumerate(case.traces):
        inherited: dict[int, list[int]] = {}
        kept: list[TraceNode] = []
        for at, node in enumerate(nodes):
            parents = chain.from_iterable(
                inherited.get(parent, [parent]) for parent in (*node.data_deps, *node.ctrl_deps)
            )
            deps = list(dict.fromkeys(parents))
            if (npu, at) in places:
                inherited[node.id] = deps
            else:
                kept.append(replace(node, data_deps=deps, ctrl_deps=[]))
        traces.append(kept or [TraceNode(1, "n1", "COMP", attributes={"is_cpu_op": False})])
    return case.with_traces(traces)


def units(case: Case) -> list[list[Place]]:
    """Nodes that go together: the parts of collectives, both ends of messages, else one by one."""
    found: dict[str, list[Place]] = {}
    for npu, nodes in enumerate(case.traces):
        seen: dict[str, int] = {}
        for at, node in enumerate(nodes):
            key = f"{npu} {at}"
            if node.type.startswith("COMM"):
                ends = {"comm_src": npu, "comm_dst": npu} | node.attributes
                ends = node.attributes if node.type == "COMM_COLL" else ends
                kind = "collective" if node.type == "COMM_COLL" else "message"
                key = kind + json.dumps(ends, sort_keys=True, default=str)
                seen[key] = seen.get(key, -1) + 1
                key += str(seen[key])
            found.setdefault(key, []).append((npu, at))
    return list(found.values())


def _fewer_nodes(case: Case, parts: Sequence[list[Place]]) -> Iterator[Case]:
    """Without half of them, without a quarter, ... without one."""
    size = len(parts)
    while size >= 1:
        for begin in range(0, len(parts), size):
            yield without(case, chain.from_iterable(parts[begin : begin + size]))
        size //= 2


def _plainer_files(case: Case) -> Iterator[Case]:
    for at in range(len(case.flags)):
        yield replace(case, flags=case.flags[:at] + case.flags[at + 1 :])
    for key, value in case.system.items():
        if SIMPLE.get(key, value) != value:
            yield replace(case, system=case.system | {key: SIMPLE[key]})
        elif key not in SIMPLE:
            yield replace(case, system={k: v for k, v in case.system.items() if k != key})
    for number in case.groups:
        yield replace(case, groups={k: v for k, v in case.groups.items() if k != number})


def _smaller_figures(case: Case) -> Iterator[Case]:
    """Every duration, and every size, of one value at once: so both ends of a message agree."""
    nodes = list(chain.from_iterable(case.traces))
    for micros in sorted({node.duration_micros for node in nodes} - {0, 1}):
        yield case.with_traces(
            [
                [
                    replace(node, duration_micros=1) if node.duration_micros == micros else node
                    for node in trace
                ]
                for trace in case.traces
            ]
        )
    sizes = {size for node in nodes if isinstance(size := node.attributes.get("comm_size"), int)}
    for size in sorted(sizes):
        for smaller in (1000, size // 2):
            if smaller < size and smaller > 0:
                yield case.with_traces(
                    [[_resized(node, size, smaller) for node in trace] for trace in case.traces]
                )


def _resized(node: TraceNode, size: int, smaller: int) -> TraceNode:
    if node.attributes.get("comm_size") != size:
        return node
    return replace(node, attributes=node.attributes | {"comm_size": smaller})


def _steps(case: Case) -> Iterator[Case]:
    yield from _fewer_nodes(case, units(case))
    yield from _plainer_files(case)
    yield from _smaller_figures(case)
    single = [[(npu, at)] for npu, nodes in enumerate(case.traces) for at in range(len(nodes))]
    yield from _fewer_nodes(case, single)


def minimise(case: Case, differs: Differs) -> Case:
    """The smallest case that no single step makes smaller; `differs` holds for `case`."""
    trials = 0
    smaller: Case | None = case
    while smaller is not None and trials < MOST_TRIALS:
        case, smaller = smaller, None
        for candidate in _steps(case):
            trials += 1
            if trials >= MOST_TRIALS:
                break
            if candidate != case and differs(candidate):
                smaller = candidate
                break
    return case
