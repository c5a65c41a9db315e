"""Random combinations of what serves a request; prints those that break an invariant.

usage: python evaluation/mixtures.py [--cases N] [--first-seed S] [--quick]

Each case draws instances (both, prefill and decode apart, or attention and FFN apart, with prefill
groups or without), layouts that alternate, KV tiers, drafts, a scheduler or a ranking, sessions,
clients that give up, and KV caches so small that requests lose their blocks. A case holds if all
invariants of the run do, if every request finishes unless its client has gone or it can never run,
if tokens are those that were asked for, and if a second run gives the same bytes. Where folded
steps have to equal those that the engine runs rank by rank (`--exact`), they do. What does not run
together has to be refused in one sentence. `--quick` leaves the second and third run out.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import llmsim
from llmsim.cli.arguments import OneSentenceParser
from llmsim.config.errors import InfeasibleError, InputError, NotYetError

DENSE, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
MAX_MODEL_LEN = 1600
REFUSED = (InputError, InfeasibleError, NotYetError)
LOADS = (
    "synthetic:n=24,rate=60,input=lognormal:250,output=lognormal:60,seed={seed}",
    "synthetic:n=24,rate=400,input=lognormal:250,output=lognormal:60,seed={seed}",
    "synthetic:agentic,n=6,rate=20,calls=4,system=64,prompt=50,tool=60,output=30,tool_ms=20,"
    "seed={seed}",
    "synthetic:reasoning,n=6,rate=20,rounds=4,new=lognormal:120,output=20,tool_ms=10,seed={seed}",
)
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"scheduling_policy": "h2q_br:L=100,C=400,B=2"},
    {"scheduling_policy": "slo_age"},
    {"scheduling_policy": "inverted-slo"},
    {"scheduling_policy": "reverse-priority"},
    {"scheduler": "mlfq", "enable_chunked_prefill": True, "enable_prefix_caching": True},
    {"scheduler": "sarathi"},
    {"scheduler": "sglang"},
)


@dataclass
class Case:
    """A cluster file, a load, and options of a run."""

    seed: int
    cluster: dict[str, Any]
    load: str
    options: dict[str, Any] = field(default_factory=dict)
    gives_up: bool = False


def drawn(seed: int) -> Case:
    """The case of a seed."""
    draw = random.Random(seed)
    engine = {
        "num_gpu_blocks_override": draw.choice((110, 160, 400, 4000)),
        "max_model_len": MAX_MODEL_LEN,
    }
    model = draw.choice((DENSE, MOE))
    cluster: dict[str, Any] = {
        "link_bw": draw.choice(([450, 450, 50], [450, 2, 1])),
        "link_latency": [1000, 1000, 2000],
        "kv_transfer_mode": "push",
        "kv_transfer": draw.choice(("whole", "layerwise")),
        "engine": engine,
    }
    if draw.random() < 0.5:
        cluster |= {"kv_transfer_mode": "pull", "kv_transfer": "whole"}
    tiers = draw.random() < 0.3
    memory = {"cpu_mem": {"mem_size": draw.choice((1, 64)), "mem_bw": 100, "mem_latency": 0}}
    if draw.random() < 0.5:
        _layouts(draw, cluster, model, memory if tiers else {})
    else:
        node = memory if tiers else {}
        cluster["nodes"] = [{**node, "instances": _instances(draw, model)}]
    if draw.random() < 0.15 and "layouts" not in cluster:
        cluster["topology"] = "pcie_gen4_8"
    options: dict[str, Any] = dict(draw.choice(POLICIES))
    if not options and draw.random() < 0.4:
        options |= {"enable_chunked_prefill": draw.random() < 0.7, "max_num_batched_tokens": 2048}
    if "scheduler" not in options:
        options["async_scheduling"] = draw.random() < 0.5
        options["enable_prefix_caching"] = draw.random() < 0.7 or tiers
    apart = "afd_group" in str(cluster)
    if apart:
        options.pop("scheduler", None)
    if draw.random() < 0.3 and "scheduler" not in options and not apart:
        options["async_scheduling"] = False
        options["speculative_config"] = {
            "method": "ngram", "num_speculative_tokens": draw.randint(1, 4), "acceptance_rate": 0.6,
        }  # fmt: skip
    if tiers:
        options |= {
            "prefix_storage": "CPU",
            "enable_prefix_sharing": draw.random() < 0.5,
            "kv_tier_recall": draw.choice(("sync", "async")),
            "kv_tier_write": draw.choice(("write-through", "write-back")),
            "kv_chunk_size": 64,
        }
    gives_up = draw.random() < 0.2
    if gives_up:
        options["request_timeout"] = draw.choice((0.1, 0.5))
    options["request_routing_policy"] = draw.choice(("RR", "LOAD", "PREFIX"))
    options["max_num_batched_tokens"] = options.get(
        "max_num_batched_tokens", draw.choice((256, 2048))
    )
    return Case(seed, cluster, draw.choice(LOADS).format(seed=seed), options, gives_up)


def _instances(draw: random.Random, model: str) -> list[dict[str, Any]]:
    """Four devices of one deployment."""
    base = {"model_name": model, "hardware": "H100"}
    kind = draw.choice(("both", "both", "pd", "pd", "afd", "p_afd"))
    if kind == "both":
        tp = draw.choice((1, 2, 4))
        return [{**base, "tp_size": tp}] * (4 // tp)
    if kind == "pd":
        return _apart(draw, base)
    sides = _sides(draw, base, model)
    if kind == "afd":
        return [*sides[:1] * 2, *sides[1:] * 2] if draw.random() < 0.3 else sides * 1
    prefill = {**base, "tp_size": 1, "pd_type": "prefill"}
    return [prefill, prefill, {**sides[0], "attn_dp_size": 1, "attn_tp_size": 1}, {
        **sides[1], "ffn_tp_size": 1, "ffn_ep_size": 1,
    }]  # fmt: skip


def _apart(draw: random.Random, base: dict[str, Any]) -> list[dict[str, Any]]:
    """Prefill and decode on four devices."""
    shape = draw.choice((((1, 1), (3, 1)), ((3, 1), (1, 1)), ((1, 2), (1, 2)), ((1, 2), (2, 1))))
    (prompts, prompt_tp), (answers, answer_tp) = shape
    prefill = {**base, "tp_size": prompt_tp, "pd_type": "prefill"}
    return [prefill] * prompts + [{**base, "tp_size": answer_tp, "pd_type": "decode"}] * answers


def _sides(draw: random.Random, base: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """Attention and FFN, two devices each."""
    group = {**base, "afd_group": "layers"}
    tp = draw.choice((1, 2))
    ep = draw.choice((1, 2)) if model == MOE else 1
    return [
        {**group, "pd_type": "attention", "attn_tp_size": tp, "attn_dp_size": 2 // tp,
         "afd_micro_batches": draw.randint(1, 3)},
        {**group, "pd_type": "ffn", "ffn_tp_size": 2 // ep, "ffn_ep_size": ep},
    ]  # fmt: skip


def _layouts(
    draw: random.Random, cluster: dict[str, Any], model: str, node: dict[str, Any]
) -> None:
    names = ["second", "first", "second"]
    cluster["layouts"] = {"first": _four(draw, model), "second": _four(draw, model)}
    whens = [
        draw.choice(
            (
                {"at_s": round(draw.uniform(0, 0.6), 3)},
                {"active_share_below": round(draw.uniform(0.1, 0.9), 3)},
                {"waiting_below": draw.randint(1, 10)},
            )
        )
        for _ in range(draw.randint(1, 3))
    ]
    cluster["switch"] = [
        {"to": name, "when": when} for name, when in zip(names, whens, strict=False)
    ]
    cluster["reconfiguration"] = {
        "kv": draw.choice(("move", "recompute", "drop")),
        "process_s": draw.choice((0, 0.05)),
    }
    if node:
        cluster["node"] = {"devices": draw.choice((2, 4, 8)), **node}


def _four(draw: random.Random, model: str) -> list[dict[str, Any]]:
    """Instances that take four devices."""
    while True:
        found = _instances(draw, model)
        if sum(_devices(one) for one in found) == 4:
            return found


def _devices(instance: dict[str, Any]) -> int:
    sizes = [instance.get(f"{name}_size", 1) for name in ("tp", "attn_tp", "attn_dp")]
    ffn = [instance.get(f"ffn_{name}_size", 1) for name in ("tp", "ep")]
    count = 1
    for size in (*sizes, *ffn):
        count *= size
    return count


def run(case: Case, **more: Any) -> llmsim.Result:
    """Every step is checked."""
    return llmsim.run(
        case.cluster, case.load, cost_source="roofline", check_every_step=True,
        **{**case.options, **more},
    )  # fmt: skip


def problem(case: Case, *, whole: bool = True) -> str:
    """What is wrong with a case, "refused" where it does not run, or nothing."""
    try:
        result = run(case)
    except REFUSED as error:
        return "a refusal of several lines" if "\n" in str(error) else "refused"
    broken = {name: value for name, value in result.summary["invariants"].items() if value != "ok"}
    if broken:
        return str(broken)
    wrong = _unfinished(case, result)
    if wrong or not whole:
        return wrong
    again = run(case)
    if not (again.requests.equals(result.requests) and again.steps.equals(result.steps)):
        return "two runs differ"
    if case.cluster.get("topology") is None and "layouts" not in case.cluster:
        return _exact(case, result)
    return ""


def _unfinished(case: Case, result: llmsim.Result) -> str:
    requests = result.requests
    ended = {"finished", "rejected"} | ({"cancelled", "refused"} if case.gives_up else set())
    left = requests[~requests["status"].isin(ended)]
    if len(left) and not (case.gives_up and (left["arrival_ps"] < 0).all()):
        return f"{len(left)} requests neither finished nor left"
    done = requests[requests["status"] == "finished"]
    asked = done["output_tokens"].clip(upper=MAX_MODEL_LEN - done["input_tokens"])
    return "" if (done["emitted_tokens"] == asked).all() else "tokens are missing"


def _exact(case: Case, folded: llmsim.Result) -> str:
    try:
        expanded = run(case, exact=True)
    except REFUSED:
        return ""
    same = folded.requests["finish_ps"].equals(expanded.requests["finish_ps"])
    return "" if same else "folded steps are not those of the engine"


def main() -> int:
    """Prints what is wrong; exit code 1 if anything is."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="runs each case once")
    given = parser.parse_args()
    begin, counts = time.process_time(), Counter[str]()
    for seed in range(given.first_seed, given.first_seed + given.cases):
        try:
            found = problem(drawn(seed), whole=not given.quick)
        except Exception as error:  # a defect: its seed is what a person needs
            found = f"{type(error).__name__}: {error}"
        counts["broken" if found not in ("", "refused") else found or "held"] += 1
        if found not in ("", "refused"):
            print(f"seed {seed}: {found}", flush=True)
    print(f"{dict(counts)}, {time.process_time() - begin:.0f} CPU s")
    return int(counts["broken"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
