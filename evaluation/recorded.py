"""Simulates the runs that were recorded for this project, with nothing fitted, and writes a page.

`python evaluation/recorded.py [--output docs/explanation/recorded.md] [--disable-term NAME]...`

Each run is a folder below `evaluation/recorded/`: what `profiler serve-log` wrote of a real vLLM on
a real card (see the README there). Latencies, throughput, decode steps by batch size, launches,
and the KV capacity are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from recorded_hosts import (
    FEWEST_STEPS,
    at_speed_of,
    host_times,
    launchings,
    many_sequences,
    others_host_times,
)
from recorded_power import drawn_w, fitted_energies
from recorded_runs import (
    ASSUMED_HOST,
    FOLDER,
    LOADS,
    MEAN_TPOT,
    MEAN_TTFT,
    METRICS,
    SERVED,
    THROUGHPUT,
    Run,
    Served,
    capacity_tokens,
    recorded_capacity_tokens,
    simulate,
)

from llmsim.cli.arguments import OneSentenceParser

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


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
    energies = fitted_energies()
    without = ", ".join(f"{error(run, MEAN_TPOT):+.1f}" for run in unfused)
    return words.format(
        unfused=without,
        switching=energies.switching_fj_per_flop,
        traffic=energies.traffic_fj_per_byte,
        **texts,
    )


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


def power_table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| model | load | mean, W | by the data sheet, W | 95th percentile, W | clock, MHz |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for run in runs:
        power = run.meta["facts"]["power"]
        drawn = drawn_w(run.served, run.load)
        sheet = "" if drawn is None else f"{drawn:.0f}"
        peak, clock = (f"{power[name]:.0f}" for name in ("p95_w", "sm_mhz"))
        yield row([run.served.title, run.load, f"{power['mean_w']:.0f}", sheet, peak, clock])


def row(cells: Sequence[str]) -> str:
    """Of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
