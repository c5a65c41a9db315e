"""Throws damaged and extreme files at the command: whatever they hold, it ends soon, with 0, 2 or
3, and says why.

    python -m engine.fuzz ROUNDS [EXECUTABLE [FIRST_SEED]]    from tests/; prints what breaks the
    rule, keeps it

Inputs come from a small sound case: bytes are changed, values replaced by extreme ones, members
dropped and doubled.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.mutators import INTEGERS, REALS, TEXTS, damaged_bytes, damaged_value

from engine import chakra_file as ck

SECONDS = 10


def random_node(rng: random.Random, node_id: int) -> bytes:
    """Any type, any parents, attributes with extreme values."""
    names = (
        "comm_type",
        "comm_size",
        "comm_src",
        "comm_dst",
        "comm_tag",
        "pg_name",
        "involved_dim",
        "tensor_size",
    )
    names += ("num_ops", "is_cpu_op", "root_rank", "duration_ps", "memory_tier", "engine_stream")
    attributes: dict[str, Any] = {}
    for name in rng.sample(names, rng.randint(3, len(names))):
        value: Any = rng.choice(
            (0, 1, 1, 2, 3, 4, 100, 4096, *INTEGERS, "1", "x", True, [True], [False, True])
        )
        attributes[name] = value % 2**63 if type(value) is int else value
    deps = [rng.choice((0, 1, node_id, node_id + 1, 2**64 - 1)) for _ in range(rng.randint(0, 2))]
    micros = rng.choice((0, 1, 5, 2**40, 2**50, 2**63))
    return ck.node(node_id, rng.randint(0, 7), deps, micros, **attributes)


def _traces(rng: random.Random, case: Path) -> None:
    path = case / f"workload.{rng.randrange(4)}.et"
    if rng.random() < 0.5:
        path.write_bytes(damaged_bytes(rng, path.read_bytes()))
    else:
        path.write_bytes(ck.trace([random_node(rng, i) for i in range(rng.randint(1, 6))]))


def _network(rng: random.Random, case: Path) -> None:
    path = case / "network.yml"
    if rng.random() < 0.3:
        path.write_bytes(damaged_bytes(rng, path.read_bytes()))
        return
    rows = {
        key: json.loads(value)
        for key, value in (line.split(": ", 1) for line in path.read_text().splitlines())
    }
    key, at = rng.choice(list(rows)), rng.randrange(2)
    rows[key][at] = rng.choice((*INTEGERS, *REALS, *TEXTS, "Ring", "FullyConnected", 3, 1e-9, 1e9))
    path.write_text(
        "".join(f"{name}: {json.dumps(row)}\n" for name, row in rows.items()), errors="replace"
    )


def _json(name: str) -> Callable[[random.Random, Path], None]:
    def damage(rng: random.Random, case: Path) -> None:
        path = case / name
        if rng.random() < 0.3:
            path.write_bytes(damaged_bytes(rng, path.read_bytes()))
            return
        value = json.loads(path.read_text())
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            value = damaged_value(rng, value)
        path.write_text(json.dumps(value), errors="replace")

    return damage


DAMAGES: dict[str, Callable[[random.Random, Path], None]] = {
    "traces": _traces,
    "network": _network,
    **{
        name: _json(f"{name}.json")
        for name in ("system", "memory", "tiers", "comm_group", "topology", "trace")
    },
}


def sound_case(folder: Path) -> Path:
    """Four NPUs with every kind of node, all files that there are, and one trace as JSON."""
    traces = []
    for npu in range(4):
        nodes = [
            ck.node(1, ck.COMP, micros=2, num_ops=1000, tensor_size=10),
            ck.node(2, ck.COLL, [1], comm_type=0, comm_size=4096, involved_dim=[True, True]),
            ck.node(3, ck.COLL, [2], comm_type=6, comm_size=4096, pg_name=str(1 + npu // 2)),
            ck.node(4, ck.SEND, [1], comm_size=100, comm_dst=(npu + 1) % 4, comm_tag=1),
            ck.node(5, ck.RECV, [1], comm_size=100, comm_src=(npu - 1) % 4, comm_tag=1),
            ck.node(6, ck.LOAD, [5], tensor_size=4096),
        ]
        traces.append(nodes)
    net = {
        "topology": ["Ring", "Switch"],
        "npus_count": [2, 2],
        "bandwidth": [50, 25],
        "latency": [500, 700.5],
    }
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system: dict[str, Any] = {f"{kind}-implementation": ["ring", "direct"] for kind in kinds}
    system |= {
        "preferred-dataset-splits": 2,
        "active-chunks-per-dimension": 1,
        "scheduling-policy": "LIFO",
    }
    system |= {"collective-optimization": "localBWAware", "peak-perf": 100, "roofline-enabled": 0}
    memory = {
        "memory-type": "PER_NPU_MEMORY_EXPANSION",
        "remote-mem-latency": 100,
        "remote-mem-bw": 10,
    }
    case = ck.write_case(folder, traces, net, system, memory, {"1": [0, 1], "2": [2, 3]})
    tier = {
        "name": "a",
        "per": "node",
        "npus_per_node": 2,
        "bandwidth_gb_per_s": 10,
        "channels": 2,
        "sharing": "fifo",
    }
    tier |= {
        "port_gb_per_s": 5,
        "npus_per_port": 1,
        "held_by": [0, 3],
        "latency_ns": 100.5,
        "capacity_gb": 1,
    }
    other = {"name": "b", "per": "all", "bandwidth_gb_per_s": 1}
    (case / "tiers.json").write_text(json.dumps({"tiers": [tier, other]}))
    links = [
        {"a": str(i), "b": "s", "bandwidth_gb_per_s": 50, "latency_ns": 500, "count": 1}
        for i in range(4)
    ]
    switches = [{"name": "s", "bisection_gb_per_s": 100, "spread": 1}]
    topology = {
        "devices": 4,
        "devices_relay": False,
        "switches": switches,
        "links": links,
        "routes": [["0", "s", "1"]],
    }
    (case / "topology.json").write_text(json.dumps(topology))
    nodes_json = [
        {"version": "1"},
        {"id": "1", "type": "COMP_NODE", "attr": [{"name": "x", "int64_val": "5"}]},
    ]
    nodes_json.append(
        {"id": 2, "data_deps": ["1"], "attr": [{"name": "y", "bool_list": {"values": [True]}}]}
    )
    (case / "trace.json").write_text(json.dumps(nodes_json))
    return case


def commands(executable: Path, case: Path, what: str, rng: random.Random) -> list[str]:
    """How the damaged part is used."""
    if what == "trace":
        return [str(executable), "from-json", str(case / "trace.json"), str(case / "out.et")]
    if what == "traces" and rng.random() < 0.4:
        return [
            str(executable),
            rng.choice(("validate", "to-json", "dot", "graphml")),
            str(case / "workload.0.et"),
        ]
    rules = "default" if what in ("topology", "tiers") or rng.random() < 0.5 else "strict"
    backends = [
        "congestion-unaware",
        "congestion-aware",
        *(["fair-share"] if rules == "default" else []),
    ]
    network = "topology.json" if what == "topology" else "network.yml"
    options = {
        "rules": rules,
        "network-backend": rng.choice(backends),
        "workload-configuration": case / "workload",
        "system-configuration": case / "system.json",
        "network-configuration": case / network,
        "remote-memory-configuration": case / ("tiers.json" if what == "tiers" else "memory.json"),
        "comm-group-configuration": case / "comm_group.json",
    }
    return [str(executable), *(f"--{name}={value}" for name, value in options.items())]


def verdict(command: list[str]) -> str:
    """What is wrong with how a run ends; "" when nothing is."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"still runs after {SECONDS} s"
    if done.returncode not in (0, 2, 3):
        return f"exit code {done.returncode}: {done.stderr[-2000:].decode(errors='replace')}"
    lines = [line for line in done.stderr.splitlines() if not line.startswith(b"note: ")]
    if done.returncode != 0 and not (lines and lines[0].startswith(b"error: ")):
        return f"exit code {done.returncode} without a sentence"
    return ""


def one_round(executable: Path, sound: Path, scratch: Path, what: str, seed: int) -> str:
    """Damages one part of a copy of the sound case and runs it."""
    rng = random.Random(f"{what} {seed}")
    case = scratch / "case"
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(sound, case)
    DAMAGES[what](rng, case)
    return verdict(commands(executable, case, what, rng))


def main(rounds: int, executable: Path, first: int = 0) -> int:
    scratch = Path(tempfile.mkdtemp())
    sound = sound_case(scratch / "sound")
    broken = 0
    for what in DAMAGES:
        for seed in range(first, first + rounds):
            wrong = one_round(executable, sound, scratch, what, seed)
            if wrong:
                broken += 1
                shutil.copytree(scratch / "case", scratch / f"{what}-{seed}", dirs_exist_ok=True)
                print(f"{what} {seed}: {wrong} ({scratch}/{what}-{seed})", flush=True)
    print(f"{rounds * len(DAMAGES)} inputs, {broken} broke the rule")
    return int(broken > 0)


if __name__ == "__main__":
    from engine.command import build_command

    given = sys.argv[2:]
    program = Path(given[0]) if given else build_command()
    sys.exit(main(int(sys.argv[1]), program, int(given[1]) if len(given) > 1 else 0))
