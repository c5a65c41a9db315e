"""Options of `llmsim run`: what is simulated: the cluster, the trace, its clients, and where requests go."""

from pathlib import Path
from typing import Annotated

from llmsim.cli.options.panel import option, path_option

PANEL = "Input"

Cluster = Annotated[
    Path, path_option(PANEL, "--cluster-config", text="Cluster JSON, such as those in cluster_config/.")
]
Dataset = Annotated[
    str,
    option(
        PANEL,
        "--dataset",
        text="Trace, told by its content: LLMServingSim JSONL, Mooncake, Bailian, Azure, BurstGPT, Vidur, vLLM bench, "
        "aiperf, TraceLab, Weka, ShareGPT, Baseten (also .gz, .zst), or trace:FILE,speedup=2,...; a generator such as "
        "synthetic:n=1000,rate=10,input=lognormal:220,output=lognormal:190.",
    ),
]
NumReqs = Annotated[int, option(PANEL, "--num-reqs", "--num-req", text="Lines of the trace to use; 0: all.")]
MaxConcurrency = Annotated[
    int, option(PANEL, "--max-concurrency", text="Requests (or sessions) in progress at most; 0: no limit.")
]
ThinkTime = Annotated[
    str | None,
    option(PANEL, "--think-time", text="ms a client waits before it asks again, as 500 or exponential:2000."),
]
RequestTimeout = Annotated[
    float | None, option(PANEL, "--request-timeout", text="Seconds after which a client gives up.")
]
Horizon = Annotated[
    float | None, option(PANEL, "--horizon", text="Simulated seconds after which the run ends, whatever is left.")
]
Seed = Annotated[
    int, option(PANEL, "--seed", text="Seed of random routing, expert loads, acceptance and think times.", default=True)
]
Routing = Annotated[
    str,
    option(
        PANEL,
        "--request-routing-policy",
        text="NAME[:key=value,...]: LOAD, RR, RAND, LOR, P2C, SESSION, VLLM_DP, PREFIX, WEIGHTED, or module:Class.",
        default=True,
    ),
]
AllowPlugins = Annotated[
    bool,
    option(
        PANEL,
        "--allow-plugins/--no-allow-plugins",
        text="Whether options may name Python plug-ins, whose code then runs (SECURITY.md).",
        default=True,
    ),
]
DecodeRouting = Annotated[
    str,
    option(
        PANEL,
        "--decode-routing-policy",
        text="Where a disaggregated request is decoded; the same choices.",
        default=True,
    ),
]
Arrivals = Annotated[
    Path | None,
    path_option(PANEL, "--arrivals", text="Recorded log whose true arrival times replace the trace's."),
]
