"""Whether `llmsim why` names causes that were planted, and none where none was.

usage: python evaluation/why.py [--seeds N] [--first-seed S] [--kind NAME]

Each seed draws a healthy deployment (device, instances, load, lengths), which is the control, and
one run for each kind of planted cause. A planted run counts as named where the first cause is the
planted one and one of its what-ifs takes away a quarter of the percentile, or of the mean from it
on. A control counts where no cause is named.
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

import llmsim
from llmsim.api.why.answer import MATERIAL, Why, why
from llmsim.api.why.seen import percentile_ms
from llmsim.cli.arguments import OneSentenceParser

DEVICES = {"H100": 8.0, "H200": 9.0, "A100": 5.0, "L40S": 1.6}
"""Requests per second of one instance of an 8B model at a moderate load."""
MODEL = "meta-llama/Llama-3.1-8B"
REQUESTS = 600
MATTERS = 1.6
"""A planted cause of the host is made worse until it multiplies the percentile by this."""


class Skewed:
    """A router that sends a fixed share of the requests to group 0, as a bad hash does."""

    def __init__(self, share: float = 0.6, seed: int = 0) -> None:
        self._share, self._draw = share, np.random.default_rng(seed)

    def route(self, request: Any, groups: Any) -> int:
        """Group 0 with the given probability, else one of the others."""
        if self._draw.random() < self._share:
            return int(groups[0].index)
        return int(groups[1 + self._draw.integers(len(groups) - 1)].index)


@dataclass(frozen=True)
class Case:
    """A run: its cluster's fields, its requests and options, and the question."""

    fields: dict[str, Any]
    requests: pd.DataFrame
    options: dict[str, Any] = field(default_factory=dict)
    metric: str = "ttft"

    def answer(self) -> Why:
        """What `why` says."""
        return why(llmsim.run(self.fields, self.requests, **self.options), self.metric)

    def value_ms(self) -> float:
        """The percentile that the question is about."""
        found = percentile_ms(
            llmsim.run(self.fields, self.requests, **self.options), self.metric, 99
        )
        assert found is not None
        return found

    def instances(self) -> list[dict[str, Any]]:
        """The instances of the cluster's fields."""
        return [one for node in self.fields["nodes"] for one in node["instances"]]


def control(seed: int, least: int = 1, most: int = 4) -> Case:
    """A healthy deployment of `least` to `most` instances."""
    draw = np.random.default_rng([seed, 1])
    device = str(draw.choice(list(DEVICES)))
    instances = int(draw.integers(least, most + 1))
    rate = DEVICES[device] * instances * draw.uniform(0.5, 1.0)
    cluster = llmsim.Cluster.build(MODEL, device, instances=instances)
    return Case(cluster.fields(), poisson(draw, rate), {"seed": seed})


def poisson(
    draw: np.random.Generator, rate: float, n: int = REQUESTS, prompt: float = 600
) -> pd.DataFrame:
    """Requests with lognormal lengths."""
    return pd.DataFrame(
        {
            "arrival_s": np.cumsum(draw.exponential(1 / rate, n)),
            "input_tokens": np.clip(draw.lognormal(np.log(prompt), 0.5, n), 16, 8000).astype(int),
            "output_tokens": np.clip(draw.lognormal(np.log(150), 0.5, n), 8, 1000).astype(int),
        }
    )


def slow_link(seed: int) -> Case:
    """Tensor parallelism over links of a few GB/s."""
    draw = np.random.default_rng([seed, 2])
    tp = int(draw.choice([2, 4]))
    fields = llmsim.Cluster.build(MODEL, "H100", tp=tp).fields()
    fields["link_bw"] = [float(draw.uniform(2, 6))] * 3
    options = {"seed": seed, "collective_costs": "links"}
    return Case(fields, poisson(draw, draw.uniform(1, 3)), options)


def slow_kv_transfer(seed: int) -> Case:
    """Prefill and decode instances that are joined by a slow link."""
    draw = np.random.default_rng([seed, 3])
    fields = llmsim.Cluster.build(MODEL, "H100", prefill=1, decode=1).fields()
    fields["link_bw"] = [float(draw.uniform(1.0, 2.0))] * 3
    return Case(fields, poisson(draw, draw.uniform(3, 5)), {"seed": seed})


def small_kv_cache(seed: int) -> Case:
    """A KV cache of a part of what the load fills."""
    case = control(seed)
    draw = np.random.default_rng([seed, 4])
    found = llmsim.run(case.fields, case.requests, **case.options)
    peak = max(one["peak_blocks_used"] for one in found.summary["kv_cache"])
    longest = int((case.requests["input_tokens"] + case.requests["output_tokens"]).max())
    blocks = max(int(peak * draw.uniform(0.25, 0.4)), longest // 16 + 8)
    for instance in case.instances():
        instance["num_gpu_blocks_override"] = blocks
    return case


def long_prompts(seed: int) -> Case:
    """A few prompts of tens of thousands of tokens among short ones."""
    case = control(seed, most=2)
    draw = np.random.default_rng([seed, 5])
    rows = draw.choice(len(case.requests), 4, replace=False)
    requests = pd.concat([case.requests, case.requests], ignore_index=True)
    requests.loc[len(case.requests) :, "arrival_s"] += case.requests["arrival_s"].max()
    requests.loc[rows, "input_tokens"] = draw.integers(40_000, 90_000, len(rows))
    return replace(case, requests=requests)


def straggler(seed: int) -> Case:
    """One instance of several with slower hardware, a slow host, or no CUDA graphs."""
    draw = np.random.default_rng([seed, 6])
    instances = int(draw.integers(3, 5))
    fields = llmsim.Cluster.build(MODEL, "H100", instances=instances).fields()
    case = Case(fields, poisson(draw, 7.0 * instances), {"seed": seed})
    slow = case.instances()[int(draw.integers(instances))]
    match int(draw.integers(3)):
        case 0:
            slow |= {"hardware": "L40S", "npu_mem": {"mem_size": 44.4, "mem_bw": 864}}
        case 1:
            slow["host_gap_ns"] = float(draw.uniform(8e6, 20e6))
        case _:
            slow |= {"enforce_eager": True, "launch_ns": float(draw.uniform(60e3, 120e3))}
    policy = str(draw.choice(["RR", "RAND"]))
    metric = "tpot" if draw.random() < 0.5 else "e2el"
    return replace(case, options={"seed": seed, "request_routing_policy": policy}, metric=metric)


def router_imbalance(seed: int) -> Case:
    """A router that sends most requests to one of several instances."""
    case = control(seed, least=3)
    draw = np.random.default_rng([seed, 7])
    requests = case.requests.copy()
    requests["arrival_s"] /= draw.uniform(2.5, 3.5)
    policy = f"evaluation.why:Skewed:share={draw.uniform(0.85, 0.95):.2f},seed={seed}"
    options = {**case.options, "request_routing_policy": policy, "max_num_seqs": 64}
    return replace(case, requests=requests, options=options)


def too_few_devices(seed: int) -> Case:
    """More load than the instances serve."""
    case = control(seed)
    requests = case.requests.copy()
    draw = np.random.default_rng([seed, 8])
    requests["arrival_s"] /= draw.uniform(12, 20)
    return replace(case, requests=requests)


def host_overhead(seed: int) -> Case:
    """A host that leaves the devices idle between steps, or that launches slowly."""
    draw = np.random.default_rng([seed, 9])
    case = replace(control(seed), metric=str(draw.choice(["tpot", "e2el"])))
    healthy = case.value_ms()
    gap, launch = draw.uniform(5e6, 10e6), draw.uniform(20e3, 40e3)
    launches = bool(draw.random() < 0.5)
    while True:  # until it matters
        keys = {"enforce_eager": True, "launch_ns": launch} if launches else {"host_gap_ns": gap}
        fields = copy.deepcopy(case.fields)
        slow = replace(case, fields=fields)
        for instance in slow.instances():
            instance |= keys
        if slow.value_ms() >= MATTERS * healthy:
            return slow
        gap, launch = gap * 1.3, launch * 1.3


def low_limit_of_sequences(seed: int) -> Case:
    """A max_num_seqs far below what the load keeps busy."""
    case = control(seed)
    draw = np.random.default_rng([seed, 10])
    return replace(case, options={**case.options, "max_num_seqs": int(draw.integers(2, 6))})


def prompts_between_decodes(seed: int) -> Case:
    """Long prompts whose large chunks hold up the decodes beside them."""
    draw = np.random.default_rng([seed, 11])
    fields = llmsim.Cluster.build(MODEL, "H100").fields()
    requests = poisson(draw, draw.uniform(1.2, 1.8), prompt=7000)
    requests["output_tokens"] = draw.integers(40, 120, len(requests))
    options = {"seed": seed, "max_num_batched_tokens": 16384}
    return Case(fields, requests, options, "tpot")


def burst_of_arrivals(seed: int) -> Case:
    """The same load in bursts."""
    case = control(seed, most=2)
    draw = np.random.default_rng([seed, 12])
    requests = case.requests.copy()
    size = int(draw.integers(60, 100))
    arrival = requests["arrival_s"].to_numpy()
    requests["arrival_s"] = arrival[np.arange(len(arrival)) // size * size]
    return replace(case, requests=requests)


KINDS: dict[str, tuple[Callable[[int], Case], tuple[str, ...]]] = {
    "slow link": (slow_link, ("slow link",)),
    "slow KV transfer": (slow_kv_transfer, ("slow KV transfer",)),
    "small KV cache": (small_kv_cache, ("small KV cache",)),
    "long prompts ahead": (long_prompts, ("long prompts ahead",)),
    "straggler": (straggler, ("straggler",)),
    "router imbalance": (router_imbalance, ("router imbalance",)),
    "too few devices": (too_few_devices, ("too few instances",)),
    "host overhead": (host_overhead, ("host overhead",)),
    "low limit of sequences": (low_limit_of_sequences, ("low limit of sequences",)),
    "prompts between decodes": (prompts_between_decodes, ("prompts between decodes",)),
    "burst of arrivals": (burst_of_arrivals, ("burst of arrivals",)),
}
"""Kind -> what plants it, and the names of the cause."""


def named_first(answer: Why, names: tuple[str, ...]) -> bool:
    """Whether the first cause is one of `names` and a what-if confirms it."""
    if not answer.causes or answer.causes[0].name not in names:
        return False
    mine = [one for one in answer.what_ifs if one.cause in names]
    relief = max((max(one.reduction, one.mean_reduction) for one in mine), default=0.0)
    return min(relief, answer.causes[0].reduction) >= MATERIAL


def main() -> None:
    """Prints a line for each run and the counts."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--kind", default=None)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for kind, (plant, names) in KINDS.items():
        if given.kind not in (None, kind):
            continue
        found = [plant(seed).answer() for seed in seeds]
        right = sum(named_first(one, names) for one in found)
        print(f"{kind:26} named first and confirmed in {right} of {len(found)}")
        for seed, one in zip(seeds, found, strict=True):
            if not named_first(one, names):
                print(f"  seed {seed}: {_shown(one)}")
    if given.kind in (None, "control"):
        _controls(seeds)


def _controls(seeds: range) -> None:
    for metric in ("ttft", "tpot", "e2el"):
        found = [replace(control(seed), metric=metric).answer() for seed in seeds]
        silent = sum(not one.causes for one in found)
        print(f"control, {metric:17} no cause named in {silent} of {len(found)}")
        for seed, one in zip(seeds, found, strict=True):
            if one.causes:
                print(f"  seed {seed}: {_shown(one)}")


def _shown(answer: Why) -> str:
    causes = ", ".join(f"{one.name} -{one.reduction:.0%}" for one in answer.causes) or "no cause"
    return f"{answer.seen.value_ms:.1f} ms: {causes}"


if __name__ == "__main__":
    sys.path.insert(0, ".")
    main()
