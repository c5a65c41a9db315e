"""The statistics of an NPU, from the times of its nodes: plain sums over instants at which anything
changes.
"""

from itertools import pairwise

from engine.strict.slow_strict import Npu
from llmsim.export.chakra import TraceNode

KINDS = {"COMP": "GPU time", "MEM_LOAD": "Remote mem time", "MEM_STORE": "Remote mem time"}
KINDS |= dict.fromkeys(("COMM_SEND", "COMM_RECV", "COMM_COLL"), "Comm time")
OVERLAP = "Total compute-communication overlap"


def kind_of(node: TraceNode) -> str:
    """The line that a node's time counts in; "" for INVALID."""
    return "CPU time" if node.attributes.get("is_cpu_op", False) else KINDS.get(node.type, "")


def times(npu: Npu) -> dict[str, str]:
    """Lines of spans in ns: of each kind, the time in which any of its nodes runs."""
    spans = [
        (npu.issued[number], end, kind_of(npu.nodes[number])) for number, end in npu.ended.items()
    ]
    instants = sorted({instant for begin, end, _ in spans for instant in (begin, end)})
    sums = {kind: 0 for *_, kind in spans if kind}
    overlap = 0
    for begin, end in pairwise(instants):
        running = {kind for first, last, kind in spans if kind and first <= begin and end <= last}
        for kind in running:
            sums[kind] += end - begin
        overlap += (end - begin) * ({"GPU time", "Comm time"} <= running)
    lines = {kind: str(total) for kind, total in sums.items()}
    if npu.finish is not None:
        lines["Wall time"] = str(npu.finish)
    if overlap:
        lines[OVERLAP] = str(overlap)
    return lines


def exposed(npu: Npu) -> int | None:
    """Finish less the compute nodes, all nodes in a replay."""
    replay = npu.run.system.get("replay-only")
    counted = [
        n
        for n, node in npu.nodes.items()
        if kind_of(node) == "GPU time" or (replay and kind_of(node) != "CPU time")
    ]
    if npu.finish is None:
        return None
    return npu.finish - sum(
        npu.ended[node] - npu.issued[node] for node in counted if node in npu.ended
    )


def averages(npu: Npu) -> dict[str, str]:
    """Lines of a roofline, weighted by time; upstream divides by a nanosecond more."""
    system = npu.run.system
    nodes = [
        node
        for number, node in npu.nodes.items()
        if kind_of(node) == "GPU time" and number in npu.ended
    ]
    if not system.get("roofline-enabled") or not nodes:
        return {}
    peak, bandwidth = system["peak-perf"] * 1e12, system["local-mem-bw"] * 1e9
    sums, total = [0.0] * 4, 1.0
    for node in nodes:
        span = npu.ended[node.id] - npu.issued[node.id]
        if span == 0:
            continue
        intensity = int(node.attributes["num_ops"]) / int(node.attributes["tensor_size"])
        rate = min(bandwidth * intensity, peak)
        shares = (
            bandwidth * intensity > peak,
            rate / peak,
            rate / intensity / bandwidth,
            intensity,
        )
        sums = [before + span * share for before, share in zip(sums, shares, strict=True)]
        total += span
    names = (
        "Compute bound percentage",
        "Average compute utilization",
        "Average memory utilization",
    )
    lines = {name: f"{100 * part / total:.3f}%" for name, part in zip(names, sums, strict=False)}
    return lines | {"Average operation intensity": f"{sums[3] / total:.3f}"}
