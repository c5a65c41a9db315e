"""`python -m bench.contended`: CPU time per step of two TP4 groups on the links of one PCIe server,
with collectives that slow each other, with KV on the same links, too, and with collectives that
are timed alone.

The smallest of several runs in one process, without lowering and without files of results.
"""

import json
import tempfile
import time
from pathlib import Path

from llmsim.api.checked.given import Given
from llmsim.api.checked.run_options import checked
from llmsim.api.preparation.prepare import prepare
from llmsim.cli.arguments import OneSentenceParser
from llmsim.simulation.run import simulate

PCIE = Path(__file__).resolve().parents[1] / "cluster_config" / "l40s_llama31_8b_tp4_pcie.json"
SPREAD = ([0, 4, 2, 6], [1, 5, 3, 7])
"""Rings that cross the sockets with every message, over the same links."""
TRACE = "synthetic:n=600,rate=50,input=fixed:200,output=fixed:100,seed=1"


def write_cluster(path: Path, roles: tuple[str | None, str | None] = (None, None)) -> None:
    """Two instances on the devices of `SPREAD`, of the roles `pd_type`."""
    document = json.loads(PCIE.read_text(encoding="utf-8"))
    one = document["nodes"][0]["instances"][0]
    instances = [
        {**one, "topology_devices": devices, "pd_type": role}
        for devices, role in zip(SPREAD, roles, strict=True)
    ]
    document["nodes"] = [{"num_instances": len(instances), "instances": instances}]
    path.write_text(json.dumps(document), encoding="utf-8")


def us_per_step(cluster: Path, contention: str, repeat: int) -> tuple[int, float]:
    """Steps of a run, and microseconds of CPU for each."""
    given = Given(
        cluster_config=cluster,
        dataset=TRACE,
        engine_options={},
        collective_contention=contention,
        request_routing_policy="RR",
    )
    best, steps = float("inf"), 0
    for _ in range(repeat):
        prepared = prepare(checked(given))
        began = time.process_time()
        results = simulate(prepared.lowered, prepared.workload, prepared.simulation)
        best = min(best, time.process_time() - began)
        steps = int(results.counters["steps"].sum())
    return steps, best / steps * 1e6


def main() -> None:
    """Prints one line per kind of step."""
    parser = OneSentenceParser(prog="python -m bench.contended", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        both, apart = Path(folder) / "both.json", Path(folder) / "apart.json"
        write_cluster(both)
        write_cluster(apart, ("prefill", "decode"))
        for name, cluster, contention in (
            ("contended", both, "on"),
            ("with KV", apart, "on"),
            ("private", both, "off"),
        ):
            steps, us = us_per_step(cluster, contention, repeat)
            print(f"{name:10} {steps:8,} steps {us:8.2f} us of CPU each", flush=True)


if __name__ == "__main__":
    main()
