"""Options of `llmsim run`: what is simulated: the cluster, the trace, its clients, and where
requests go.
"""

from pathlib import Path
from typing import Annotated

from llmsim.api.options.option import option, path_option

PANEL = "Input"

Cluster = Annotated[
    Path,
    path_option(
        PANEL,
        "--cluster-config",
        text="Names the cluster file (JSON or YAML), such as those in cluster_config/.",
    ),
]
Dataset = Annotated[
    str,
    option(
        PANEL,
        "--dataset",
        text="Names the trace: a file of LLMServingSim JSONL, Mooncake, Bailian, Azure, BurstGPT, "
        "Vidur, vLLM bench, aiperf, TraceLab, Weka, ShareGPT or Baseten (also .gz, .zst), "
        "recognised by its content; trace:FILE,speedup=2,...; or a generator such as "
        "synthetic:n=1000,rate=10,input=lognormal:220,output=lognormal:190.",
    ),
]
NumReqs = Annotated[
    int,
    option(
        PANEL, "--num-reqs", "--num-req", text="Uses the first N requests of the trace; 0 uses all."
    ),
]
MaxConcurrency = Annotated[
    int,
    option(
        PANEL,
        "--max-concurrency",
        text="Limits the requests or sessions in progress; 0 sets no limit.",
    ),
]
ThinkTime = Annotated[
    str | None,
    option(
        PANEL,
        "--think-time",
        text=(
            "Sets the ms that a client waits before its next request, such as 500 or "
            "exponential:2000."
        ),
    ),
]
RequestTimeout = Annotated[
    float | None,
    option(PANEL, "--request-timeout", text="Sets the seconds after which a client gives up."),
]
Horizon = Annotated[
    float | None,
    option(
        PANEL,
        "--horizon",
        text="Ends the run after N simulated seconds; other requests count as unfinished.",
    ),
]
Seed = Annotated[
    int,
    option(
        PANEL,
        "--seed",
        text="Seeds random routing, expert loads, acceptance and think times.",
        default=True,
    ),
]
Routing = Annotated[
    str,
    option(
        PANEL,
        "--request-routing-policy",
        text="Chooses the router, NAME[:key=value,...]: LOAD, RR, RAND, LOR, P2C, "
        "SESSION, VLLM_DP, PREFIX, WEIGHTED, TOKENS, or module:Class.",
        default=True,
    ),
]
AllowPlugins = Annotated[
    bool,
    option(
        PANEL,
        "--allow-plugins/--no-allow-plugins",
        text="Lets options name Python plug-ins, whose code then runs (SECURITY.md).",
        default=True,
    ),
]
DecodeRouting = Annotated[
    str,
    option(
        PANEL,
        "--decode-routing-policy",
        text=(
            "Chooses the router of decode instances, with the choices of --request-routing-policy."
        ),
        default=True,
    ),
]
SessionAffinity = Annotated[
    bool,
    option(
        PANEL,
        "--session-affinity/--no-session-affinity",
        text="Sends later calls of a session with hidden rounds where its first call went.",
        default=True,
    ),
]
Arrivals = Annotated[
    Path | None,
    path_option(
        PANEL,
        "--arrivals",
        text="Names a recorded log whose arrival times replace those of the trace.",
    ),
]
