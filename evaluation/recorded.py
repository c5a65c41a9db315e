"""Simulates the runs that were recorded for this project, with nothing fitted, and writes a page.

`python evaluation/recorded.py [--output docs/explanation/recorded.md] [--disable-term NAME]...`

Each run is a folder below `evaluation/recorded/`: what `profiler serve-log` wrote of a real vLLM on
a real card (see the README there). Latencies, throughput, decode steps by batch size, launches,
and the KV capacity are compared.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import theilslopes

import llmsim
from llmsim.api.prepare import prepare
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.arguments import checked_options
from llmsim.lowering import LoweredGroup
from llmsim.lowering.cuda_graphs import launches, layers_of_experts

FOLDER = Path(__file__).parent / "recorded" / "h200_vllm_0.24"
HARDWARE, ENGINE = "H200", "vllm-0.24"
LOADS = ("light", "medium", "burst", "long")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
HostTimes = Mapping[str, int]
"""`prepare_ns`, `prepare_sequence_ns`, `launch_ns` and `fused_moe_ns`, as in a cluster file."""
ASSUMED_HOST: HostTimes = {
    "prepare_ns": 0,
    "prepare_sequence_ns": 0,
    "launch_ns": 6000,
    "fused_moe_ns": 0,
}
"""What the engine's profile had before it took the times of these runs."""
COMPILING_S, COMPILING_TOKENS = 0.5, 2048
"""A step of fewer tokens that took longer waited for the compiler of its kernels."""
HIDDEN = 1.2
"""Launches behind a decode that took less than so many times its time may have waited for it."""
FEWEST_STEPS = 5
"""A class of steps with fewer in either run has no row, and gives no constant."""
MANY_SEQUENCES = 128
"""Decodes of more tell whether the host or the device takes longer."""
NEARLY_AS_MANY = 4
"""Sequences by which neighbouring steps may differ to be compared."""
HOST_BOUND = 0.5
"""Steps that last so much longer for each ms that the host takes their tokens wait for the host."""


@dataclass(frozen=True)
class Served:
    """One model on one host, and its bundle."""

    folder: str
    title: str
    host: str
    """The machine: each time that a card was at hand it was in another one."""
    utilization: float = 0.9
    profile: bool = False
    model: str = ""
    alike: bool = False
    """Answers of all sequences have the same tokens, and thereby the same experts."""

    @property
    def model_name(self) -> str:
        """A preset, or the config.json beside the runs."""
        return self.model or str(FOLDER / f"{self.folder}.json")


SERVED = (
    Served(
        "llama-3.1-8b",
        "Llama-3.1-8B, bf16",
        "first",
        profile=True,
        model="meta-llama/Llama-3.1-8B",
    ),
    Served("llama-3.1-8b-fp8", "Llama-3.1-8B, fp8 (a scale for each token)", "first"),
    Served("qwen3-32b", "Qwen3-32B, bf16", "second", 0.93, model="Qwen/Qwen3-32B"),
    Served("qwen3-30b-a3b", "Qwen3-30B-A3B, bf16", "second", 0.93, model="Qwen/Qwen3-30B-A3B"),
    Served(
        "qwen3-30b-a3b-fp8",
        "Qwen3-30B-A3B, fp8 (a scale for each token)",
        "second",
        0.93,
        alike=True,
    ),
    Served(
        "qwen3-30b-a3b-third",
        "Qwen3-30B-A3B, bf16, third host",
        "third",
        0.93,
        profile=True,
        model="Qwen/Qwen3-30B-A3B",
    ),
    Served("gpt-oss-20b", "gpt-oss-20b, MXFP4", "third", model="openai/gpt-oss-20b", alike=True),
)


@dataclass(frozen=True)
class Run:
    """A recorded run beside its simulation: milliseconds, tokens per second, and steps."""

    served: Served
    load: str
    meta: dict[str, Any]
    host: HostTimes
    """The times of the host that it was simulated with."""
    real: dict[str, float]
    simulated: dict[str, float]
    compiling: int
    """Recorded steps that waited for the compiler of their kernels."""
    real_steps: pd.DataFrame
    simulated_steps: pd.DataFrame
    real_full_ms: pd.Series
    """Of steps of the whole token budget between two others of it, and simulated."""
    simulated_full_ms: pd.Series
    updates: pd.DataFrame
    """Of recorded decodes: `sequences`, `ms`, and `update_ms`, what taking the tokens of the step
    before took the host.
    """
    launches: pd.DataFrame
    """Of the recorded run: `graphs` and `ms` of the host's time for a step."""
    lone: pd.DataFrame
    """TTFT of prompts that came to an idle engine and were alone: `real` and `simulated`, ms."""


@dataclass(frozen=True)
class HostRuns:
    """The runs with several times of the host, none of which their own recording gave."""

    assumed: Sequence[Run]
    """With what the engine's profile had before any recording."""
    other_hosts: Sequence[Run]
    """With what the recordings on the other hosts gave."""
    same_host: Sequence[Run]
    """With what those of the other models on the same host gave."""


def main() -> int:
    parser = OneSentenceParser(prog="recorded", description=__doc__)
    parser.add_argument("--output", type=Path, help="The page; by default the standard output.")
    parser.add_argument("--disable-term", action="append", default=[], help="As llmsim run has it.")
    arguments = parser.parse_args()
    text = page_of_all({"disable_term": arguments.disable_term} if arguments.disable_term else {})
    if arguments.output is None:
        print(text, end="")
    else:
        arguments.output.write_text(text, encoding="utf-8")
    return 0


def page_of_all(options: Mapping[str, Any]) -> str:
    """The page of all runs that are recorded, with these options of a run."""
    pairs = [(served, load) for served in SERVED for load in LOADS]
    found = [pair for pair in pairs if (FOLDER / pair[0].folder / pair[1]).is_dir()]
    hosts = with_host_times(found, options)
    runs = hosts.other_hosts
    bundle = {**options, "profile_dir": str(FOLDER / "profile")}
    bundled = [
        simulate(*pair, host_times(runs, (pair[0].host,)), **bundle)
        for pair in found
        if pair[0].profile
    ]
    return page(hosts, bundled, without_term(runs, "fused_scaling"))


def without_term(runs: Sequence[Run], term: str) -> list[Run]:
    """The dense fp8 runs again without a term."""
    scaled = [run for run in runs if run.served.folder == "llama-3.1-8b-fp8"]
    return [simulate(run.served, run.load, run.host, disable_term=term) for run in scaled]


def with_host_times(pairs: Sequence[tuple[Served, str]], options: Mapping[str, Any]) -> HostRuns:
    """The runs with each of the times that `HostRuns` names."""
    assumed = [simulate(*pair, ASSUMED_HOST, **options) for pair in pairs]
    other = {served: others_host_times(assumed, served) for served, _ in pairs}
    same = {served: host_times(assumed, (served.host,), without=served) for served, _ in pairs}
    return HostRuns(
        assumed,
        [simulate(*pair, other[pair[0]], **options) for pair in pairs],
        [simulate(*pair, same[pair[0]], **options) for pair in pairs],
    )


def simulate(served: Served, load: str, host: HostTimes, **options: Any) -> Run:
    """The run of a load, and the same trace simulated with the recorded engine's limits and these
    times of the host.
    """
    folder = FOLDER / served.folder / load
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    fields = llmsim.Cluster.build(served.model_name, HARDWARE).fields()
    instance = meta["facts"]["instance"]
    fields["engine"] = {"engine_profile": ENGINE, **host, **instance}
    requests = list(rows(folder / "requests.jsonl.gz"))
    result = llmsim.run(fields, meta["options"]["dataset"], **options)
    steps = folder / "steps.jsonl.gz"
    budget = instance["max_num_batched_tokens"]
    return Run(
        served,
        load,
        meta,
        host,
        latencies(requests),
        {name: float(result.summary[name]) for name in METRICS},
        compiling_steps(steps),
        recorded_steps(steps),
        simulated_steps(result.steps),
        recorded_full_steps(steps, budget),
        simulated_full_steps(result.steps, budget),
        recorded_updates(steps),
        recorded_launches(steps, meta["facts"]["largest_graph"]),
        lone_prompts(requests, result.requests),
    )


def lone_prompts(requests: Sequence[dict[str, Any]], simulated: pd.DataFrame) -> pd.DataFrame:
    """Of the recorded requests whose prompt ran alone, which no constant was made from."""
    found = []
    for number, one in enumerate(requests):
        arrival, first = one["arrival_time"], one["first_token_ts"]
        others = (other for other in requests if other is not one)
        if any(o["arrival_time"] < first and o["last_token_ts"] > arrival for o in others):
            continue
        row = simulated.iloc[number]
        found.append((1e3 * (first - arrival), (row["first_token_ps"] - row["arrival_ps"]) / 1e9))
    return pd.DataFrame(found, columns=["real", "simulated"])


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Of a compressed file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


MEAN_TTFT, MEAN_TPOT, THROUGHPUT = "mean_ttft_ms", "mean_tpot_ms", "output_throughput"
METRICS = (MEAN_TTFT, "median_ttft_ms", MEAN_TPOT, "median_tpot_ms", THROUGHPUT)


def latencies(requests: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The metrics of a log, under the names of a run's summary."""
    ttft = [1e3 * (each["first_token_ts"] - each["arrival_time"]) for each in requests]
    tpot = [
        1e3 * (each["last_token_ts"] - each["first_token_ts"]) / (each["output_toks"] - 1)
        for each in requests
        if each["output_toks"] > 1
    ]
    start = min(each["arrival_time"] for each in requests)
    span = max(each["last_token_ts"] for each in requests) - start
    values = (
        statistics.mean(ttft),
        statistics.median(ttft),
        statistics.mean(tpot),
        statistics.median(tpot),
        sum(each["output_toks"] for each in requests) / span,
    )
    return dict(zip(METRICS, values, strict=True))


def recorded_steps(path: Path) -> pd.DataFrame:
    """Steps that followed another without a pause, as `sequences` (of decodes alone) and `ms`.

    Behind and before a prompt `end` is late by the launch of the next step, so only decodes
    between decodes count.
    """
    steps = list(rows(path))
    decodes = decodes_alone(steps)
    found = [
        (len(step["batch"]), 1e3 * (step["end"] - before["end"]))
        for at, (before, step) in enumerate(pairwise(steps), 1)
        if step["extra"]["scheduled"] < before["end"] and all(decodes[at - 1 : at + 2])
    ]
    return pd.DataFrame(found, columns=["sequences", "ms"])


def recorded_full_steps(path: Path, budget: int) -> pd.Series:
    """Times in ms of steps of the whole token budget between two others of it."""
    steps = list(rows(path))
    ends = pd.Series([1e3 * step["end"] for step in steps])
    tokens = pd.Series([sum(new for new, _ in step["batch"]) for step in steps])
    return between_alike(ends.diff(), tokens == budget)


def simulated_full_steps(steps: pd.DataFrame, budget: int) -> pd.Series:
    """The same of a simulation."""
    return between_alike(steps["end_ps"].diff() / 1e9, steps["tokens"] == budget)


def between_alike(ms: pd.Series, chosen: pd.Series) -> pd.Series:
    """The times of chosen steps with a chosen one on each side."""
    before, after = (chosen.shift(by, fill_value=False) for by in (1, -1))
    return ms[chosen & before & after]


def recorded_updates(path: Path) -> pd.DataFrame:
    """Decodes with decodes around them, how long each lasted, and how long the host took the tokens
    of the step before until it scheduled again.
    """
    steps = list(rows(path))
    decodes = decodes_alone(steps)
    found = []
    for at in range(2, len(steps) - 2):
        before, step, after = steps[at - 1 : at + 2]
        next_start = after["extra"]["scheduled"]
        if all(decodes[at - 2 : at + 3]) and next_start < step["end"]:
            last_ms = 1e3 * (step["end"] - before["end"])
            found.append((len(step["batch"]), last_ms, 1e3 * (next_start - before["end"])))
    return pd.DataFrame(found, columns=["sequences", "ms", "update_ms"])


def compiling_steps(path: Path) -> int:
    """Steps that took far too long for their tokens."""
    steps = list(rows(path))
    ends = [steps[0]["extra"]["scheduled"], *(step["end"] for step in steps)]
    return sum(
        step["end"] - max(before, step["extra"]["scheduled"]) > COMPILING_S
        and sum(new for new, _ in step["batch"]) < COMPILING_TOKENS
        for before, step in zip(ends, steps, strict=False)
    )


def recorded_launches(path: Path, largest_graph: int) -> pd.DataFrame:
    """What the host took for steps with prompts behind decodes, in ms, and at most for decodes
    behind prompts.

    An asynchronous engine of one process schedules the next step when it has launched one and the
    step before has ended. Prompts were launched while the devices still ran; behind a decode the
    engine may also have waited for the prompt in front of it. Steps whose kernels were compiled are
    left out. Up to `largest_graph` tokens a graph is replayed.
    """
    steps = list(rows(path))
    decodes = decodes_alone(steps)
    found = []
    for at in range(2, len(steps) - 1):
        before, step, after = steps[at - 1 : at + 2]
        start, next_start = step["extra"]["scheduled"], after["extra"]["scheduled"]
        host_s = next_start - start
        busy = start < before["end"] and next_start < step["end"]
        if not busy or host_s > COMPILING_S:
            continue
        of_prompts = [not alone for alone in decodes[at - 2 : at + 1]]
        if of_prompts[1:] == [True, False]:
            found.append(("full", 1e3 * host_s))
        elif of_prompts == [False, False, True]:
            tokens = sum(new for new, _ in step["batch"])
            graphs = "piecewise" if tokens <= largest_graph else "none"
            found.append((graphs, 1e3 * host_s))
    return pd.DataFrame(found, columns=["graphs", "ms"])


def decodes_alone(steps: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Which steps have decodes alone."""
    return [all(new == 1 for new, _ in step["batch"]) for step in steps]


@dataclass(frozen=True)
class Launching:
    """Steps of one kind of graphs, with so many launches, and what they took the host."""

    graphs: str
    launches: int
    experts: int
    """Layers of experts that no graph has."""
    steps: int
    ms: float
    """The median; of full graphs the least, since the others may have waited for devices."""
    hidden: bool
    """Whether the host may have waited for the step before, so that its own time is not seen."""


def launchings(runs: Sequence[Run], served: Served) -> Iterator[Launching]:
    """Of one model's runs, by kind of graphs."""
    own = [run for run in runs if run.served is served]
    real = pd.concat([run.launches for run in own])
    decode_ms = pd.concat([run.real_steps for run in own]).ms.median()
    stage = lowered(served).operators
    without, piecewise, full = launches(stage)
    experts = layers_of_experts(stage)
    slow_decodes = real.ms[real.graphs == "piecewise"].median() < HIDDEN * decode_ms
    for graphs, number in (("full", full), ("piecewise", piecewise), ("none", without)):
        ms = real.ms[real.graphs == graphs]
        if len(ms) < FEWEST_STEPS:
            continue
        yield Launching(
            graphs,
            number,
            experts if graphs == "none" else 0,
            len(ms),
            ms.min() if graphs == "full" else ms.median(),
            hidden=slow_decodes and graphs != "none",
        )


@dataclass(frozen=True)
class ManySequences:
    """Decodes of more than `MANY_SEQUENCES`, and what decided how long they took."""

    steps: int
    sequences: float
    """Medians."""
    ms: float
    growth: float
    """How much longer a step lasted than the one before for each ms more that the host took tokens,
    by the median of all slopes (Theil and Sen): nothing where the device takes longer.
    """

    @property
    def host_bound(self) -> bool:
        return self.growth > HOST_BOUND


def many_sequences(runs: Sequence[Run], served: Served) -> ManySequences | None:
    """Of one model's runs; None: it had too few such steps."""
    updates = [run.updates for run in runs if run.served is served]
    of_loads = [each[each.sequences > MANY_SEQUENCES] for each in updates]
    steps = pd.concat(of_loads)
    if len(steps) < 2 * FEWEST_STEPS:
        return None
    changes = pd.concat([each.diff().dropna() for each in of_loads])
    neighbours = changes[changes.sequences.abs() <= NEARLY_AS_MANY]
    growth = float(theilslopes(neighbours.ms, neighbours.update_ms).slope)
    return ManySequences(len(steps), steps.sequences.median(), steps.ms.median(), growth)


def host_times(
    runs: Sequence[Run], hosts: Sequence[str], without: Served | None = None
) -> HostTimes:
    """Times of a step, of each launch and of each layer of experts, with the least squares of
    relative errors over the kinds of graphs of all models on these hosts but one; and of each
    sequence, by the decodes that waited for the host.

    In whole 0.1 ms, us and 10 us; none of a kind that no such model has.
    """
    on_hosts = dict.fromkeys(run.served for run in runs if run.served.host in hosts)
    models = [each for each in on_hosts if each is not without]
    kinds = [each for served in models for each in launchings(runs, served) if not each.hidden]
    step_ms, launch_ms, experts_ms = least_squares_ms(kinds)
    many = [many_sequences(runs, served) for served in models]
    sequence_ms = time_of_a_sequence_ms(many, step_ms + launch_ms)
    return {
        "prepare_ns": round(10 * step_ms) * 100_000,
        "prepare_sequence_ns": round(1e3 * sequence_ms) * 1000,
        "launch_ns": round(1e3 * launch_ms) * 1000,
        "fused_moe_ns": round(1e2 * experts_ms) * 10_000,
    }


def least_squares_ms(kinds: Sequence[Launching]) -> list[float]:
    """Of a step, of each launch and of each layer of experts; 0 for what no kind has."""
    relative = np.array([[1 / k.ms, k.launches / k.ms, k.experts / k.ms] for k in kinds])
    known: Any = relative.any(axis=0)
    times_ms = np.zeros(len(known))
    times_ms[known] = np.linalg.lstsq(relative[:, known], np.ones(len(kinds)))[0]
    return [float(ms) for ms in times_ms]


def time_of_a_sequence_ms(many: Sequence[ManySequences | None], others_ms: float) -> float:
    """What decodes that waited for the host took for each sequence beyond the other times; 0 where
    none did.
    """
    waited = [each for each in many if each is not None and each.host_bound]
    each_ms = [(one.ms - others_ms) / one.sequences for one in waited]
    return statistics.median(each_ms) if each_ms else 0.0


def others_host_times(runs: Sequence[Run], served: Served) -> HostTimes:
    """Times for a model by the recordings on the other hosts."""
    hosts = dict.fromkeys(run.served.host for run in runs if run.served.host != served.host)
    return host_times(runs, tuple(hosts))


def at_speed_of(times: HostTimes, other: HostTimes) -> HostTimes:
    """The times of a sequence, in whole us, and of experts, in whole 10 us, on a host that launches
    in another time.
    """
    speed = other["launch_ns"] / times["launch_ns"]
    return {
        name: round(times[name] * speed / unit) * unit
        for name, unit in (("prepare_sequence_ns", 1000), ("fused_moe_ns", 10_000))
    }


def simulated_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The same of a simulation."""
    ms = steps["end_ps"].diff() / 1e9
    alone = steps["prefill_tokens"] == 0
    chosen = (
        alone
        & alone.shift(1, fill_value=False)
        & alone.shift(-1, fill_value=False)
        & (steps["schedule_ps"] < steps["end_ps"].shift(1))
    )
    return pd.DataFrame({"sequences": steps["decode_sequences"][chosen], "ms": ms[chosen]})


def page(hosts: HostRuns, bundled: Sequence[Run], unfused: Sequence[Run]) -> str:
    """The whole page: the words of `recorded/page.txt`, with tables in their places.

    `bundled` are runs by the profile, and `unfused` those of dense fp8 without their term.
    """
    runs = hosts.other_hosts
    tables = {
        "requests": requests_table(runs),
        "medians": medians(hosts),
        "steps": steps_table(runs),
        "full": full_steps_table(runs),
        "sequences": sequences_table(runs),
        "launches": launches_table(runs),
        "constants": constants_table(runs),
        "host": host_table(hosts),
        "lone": lone_table(hosts),
        "capacity": capacity_table(),
        "power": power_table(runs),
        "bundled": requests_table(bundled),
    }
    words = (FOLDER.parent / "page.txt").read_text("utf-8")
    texts = {name: "\n".join(lines) for name, lines in tables.items()}
    without = ", ".join(f"{error(run, MEAN_TPOT):+.1f}" for run in unfused)
    return words.format(unfused=without, **texts)


def error(run: Run, metric: str) -> float:
    """Percent, simulated against real."""
    return 100 * (run.simulated[metric] / run.real[metric] - 1)


def requests_table(runs: Sequence[Run]) -> Iterator[str]:
    yield (
        "| model | load | TTFT, ms | error, % | median, % | TPOT, ms | error, % | median, % "
        "| tokens/s | error, % |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for run in runs:
        cells = [run.served.title, load_of(run)]
        for mean, median in (METRICS[0:2], METRICS[2:4]):
            cells += [
                f"{run.real[mean]:.2f}",
                f"{error(run, mean):+.1f}",
                f"{error(run, median):+.1f}",
            ]
        cells += [f"{run.real[THROUGHPUT]:.0f}", f"{error(run, THROUGHPUT):+.1f}"]
        yield row(cells)


def comparable(run: Run, metric: str) -> bool:
    """Whether the recorded figure is of what is simulated: kernels are compiled, and sequences have
    experts of their own.
    """
    return not run.compiling and not (run.served.alike and metric != MEAN_TTFT)


def medians(hosts: HostRuns) -> Iterator[str]:
    sources = ("6 us a launch", "other hosts", "same host")
    yield row(["metric", "runs", *(cell for source in sources for cell in (source, "largest"))])
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for title, metric in (
        ("mean TTFT", MEAN_TTFT),
        ("mean TPOT", MEAN_TPOT),
        ("throughput", THROUGHPUT),
    ):
        chosen = [run for run in hosts.assumed if comparable(run, metric)]
        cells = [title, str(len(chosen))]
        for each in (hosts.assumed, hosts.other_hosts, hosts.same_host):
            found = [abs(error(run, metric)) for run in each if comparable(run, metric)]
            cells += [f"{statistics.median(found):.1f}", f"{max(found):.1f}"]
        yield row(cells)


def steps_table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| model | sequences | steps | real, ms | simulated, ms | error, % |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for served in dict.fromkeys(run.served for run in runs):
        own = [run for run in runs if run.served is served]
        real = pd.concat([run.real_steps for run in own])
        simulated = pd.concat([run.simulated_steps for run in own])
        for low, high in pairwise((0, *BATCHES)):
            ours, theirs = (
                each.ms[(each.sequences > low) & (each.sequences <= high)]
                for each in (simulated, real)
            )
            if min(len(ours), len(theirs)) < FEWEST_STEPS:
                continue
            size = str(high) if high == low + 1 else f"{low + 1}-{high}"
            wrong = 100 * (ours.median() / theirs.median() - 1)
            cells = [served.title, size, str(len(theirs))]
            yield row([*cells, f"{theirs.median():.3f}", f"{ours.median():.3f}", f"{wrong:+.1f}"])


def full_steps_table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| model | steps | real, ms | simulated, ms | error, % |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for served in dict.fromkeys(run.served for run in runs):
        own = [run for run in runs if run.served is served]
        real = pd.concat([run.real_full_ms for run in own])
        simulated = pd.concat([run.simulated_full_ms for run in own])
        if min(len(real), len(simulated)) < FEWEST_STEPS:
            continue
        wrong = 100 * (simulated.median() / real.median() - 1)
        cells = [served.title, str(len(real)), f"{real.median():.1f}"]
        yield row([*cells, f"{simulated.median():.1f}", f"{wrong:+.1f}"])


def sequences_table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| host | model | steps | sequences | real, ms | growth | the host alone, ms |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    hosts = dict.fromkeys(run.served.host for run in runs)
    of_hosts = {host: host_times(runs, (host,)) for host in hosts}
    waited = next(times for times in of_hosts.values() if times["prepare_sequence_ns"])
    for served in dict.fromkeys(run.served for run in runs):
        many = many_sequences(runs, served)
        if many is None:
            continue
        times = of_hosts[served.host]
        alone = times["prepare_ns"] + times["launch_ns"]
        alone += many.sequences * at_speed_of(waited, times)["prepare_sequence_ns"]
        cells = [served.host, served.title, str(many.steps), f"{many.sequences:.0f}"]
        yield row([*cells, f"{many.ms:.1f}", f"{many.growth:+.2f}", f"{alone / 1e6:.1f}"])


def launches_table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| host | model | graphs | launches | steps | real, ms | by the constants, ms |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    for served in dict.fromkeys(run.served for run in runs):
        times = host_times(runs, (served.host,))
        for kind in launchings(runs, served):
            ours = times["prepare_ns"] + kind.launches * times["launch_ns"]
            ours += kind.experts * times["fused_moe_ns"]
            real = f"hidden behind {kind.ms:.1f}" if kind.hidden else f"{kind.ms:.1f}"
            cells = [served.host, served.title, kind.graphs, str(kind.launches), str(kind.steps)]
            yield row([*cells, real, f"{ours / 1e6:.1f}"])


def constants_table(runs: Sequence[Run]) -> Iterator[str]:
    yield (
        "| host | from the runs of | a step, ms | a sequence, us | a launch, us "
        "| a layer of experts, ms |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for host in dict.fromkeys(run.served.host for run in runs):
        models = dict.fromkeys(run.served for run in runs if run.served.host == host)
        found = {"all its models": host_times(runs, (host,))}
        found |= {
            f"all but {each.title}": host_times(runs, (host,), without=each) for each in models
        }
        for title, times in found.items():
            sequence, experts = times["prepare_sequence_ns"], times["fused_moe_ns"]
            yield row(
                [
                    host,
                    title,
                    f"{times['prepare_ns'] / 1e6:.1f}",
                    f"{sequence / 1e3:.0f}" if sequence else "-",
                    f"{times['launch_ns'] / 1e3:.0f}",
                    f"{experts / 1e6:.2f}" if experts else "-",
                ]
            )


def host_table(hosts: HostRuns) -> Iterator[str]:
    yield (
        "| model | load | TTFT, %: 6 us a launch | other hosts | same host "
        "| TPOT, %: 6 us a launch | other hosts | same host |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for three in zip(hosts.assumed, hosts.other_hosts, hosts.same_host, strict=True):
        cells = [three[0].served.title, load_of(three[0])]
        for metric in (MEAN_TTFT, MEAN_TPOT):
            cells += [f"{error(each, metric):+.1f}" for each in three]
        yield row(cells)


def load_of(run: Run) -> str:
    """The load, and a mark where kernels were compiled during the run."""
    return f"{run.load} (compiling)" if run.compiling else run.load


def lone_table(hosts: HostRuns) -> Iterator[str]:
    yield (
        "| model | prompts | TTFT, median %: 6 us a launch | other hosts | same host "
        "| real, median ms |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for served in dict.fromkeys(run.served for run in hosts.assumed):
        three = [
            pd.concat([run.lone for run in each if run.served is served])
            for each in (hosts.assumed, hosts.other_hosts, hosts.same_host)
        ]
        if three[0].empty:
            continue
        wrong = [100 * (lone.simulated / lone.real - 1).median() for lone in three]
        cells = [served.title, str(len(three[0])), *(f"{each:+.1f}" for each in wrong)]
        yield row([*cells, f"{three[0].real.median():.1f}"])


def capacity_table() -> Iterator[str]:
    yield "| model | tokens of the log's blocks | predicted | error, % |"
    yield "| --- | ---: | ---: | ---: |"
    for served in SERVED:
        found, real = capacity_tokens(served), recorded_capacity_tokens(served)
        wrong = 100 * (found / real - 1)
        yield row([served.title, f"{real:,}", f"{found:,}", f"{wrong:+.1f}"])


def recorded_capacity_tokens(served: Served) -> int:
    """Tokens of the blocks that the engine allocated for its KV cache."""
    meta = next((FOLDER / served.folder).glob("*/meta.json"))
    facts = json.loads(meta.read_text("utf-8"))["facts"]
    return int(facts["num_gpu_blocks"] * facts["instance"]["block_size"])


def capacity_tokens(served: Served) -> int:
    """Tokens that the simulator's ledger leaves for the KV cache."""
    group = lowered(served)
    return int(group.ledger.num_blocks * group.engine.block_size)


@cache
def lowered(served: Served) -> LoweredGroup:
    """The model on the recorded card with the recorded limits."""
    fields = llmsim.Cluster.build(served.model_name, HARDWARE).fields()
    fields["engine"] = {
        "engine_profile": ENGINE,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 16384,
        "gpu_memory_utilization": served.utilization,
    }
    path = scratch() / f"{served.folder}.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    words = ["--cluster-config", str(path), "--dataset", "synthetic:n=1,rate=1,input=8,output=2"]
    return prepare(checked_options(words)).lowered.groups[0]


@cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="recorded-"))


def power_table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| model | load | mean, W | 95th percentile, W | clock, MHz |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for run in runs:
        power = run.meta["facts"]["power"]
        cells = [f"{power[name]:.0f}" for name in ("mean_w", "p95_w", "sm_mhz")]
        yield row([run.served.title, run.load, *cells])


def row(cells: Sequence[str]) -> str:
    """Of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
