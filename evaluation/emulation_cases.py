"""Random configurations by an engine's own server in virtual time, and by `llmsim run`.

    python evaluation/emulation_cases.py --engine-python ENGINE/bin/python --cases 40 --seed 1
    python evaluation/emulation_cases.py --engine sglang --engine-python ENGINE/bin/python

prints a line for each configuration: its command, and where the first step differs. Layouts, loads
and options are drawn together, as no test combines them. A configuration that is refused is shown
with the sentence that says why, and counts neither as equal nor as different. Nor does one in which
nothing moves any more, as where SGLang waits for ever for memory that a prompt will never have. The
exit code is 1 where a configuration differs.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser
from llmsim.emulation.engines import ENGINES

Draw = Callable[[random.Random], list[str]]
"""Options of one kind, drawn; none where the kind is left to its defaults."""
OUT_OF_TIME = 900
REFUSED = 2
STANDS_STILL = "nothing has moved"
"""Words of the sentence with which such an emulation ends."""


PROXIES, BALANCER = ("RR", "LOR"), "VLLM_DP"
"""How a proxy chooses among servers, and how vLLM's own server does."""


@dataclass(frozen=True)
class Layout:
    """A cluster file, and the options that it needs or may have."""

    cluster: str
    routers: tuple[str, ...] = ()
    """Of several servers or ranks; none: there is one."""
    has_roles: bool = False
    has_blocks: bool = True
    """Whether a pool of any number of blocks can be given."""


LAYOUTS = (
    Layout("h100_llama31_8b.json"),
    Layout("h100_qwen3_30b_a3b.json"),
    Layout("h100_llama31_70b_tp4.json"),
    Layout("h100_llama31_70b_tp4_pp2.json"),
    Layout("h100_gpt_oss_120b_pd.json", PROXIES, has_roles=True),
    Layout("h100_nemotron3_nano_tp2.json", has_blocks=False),
    Layout("h100_multi_instance.json", (*PROXIES, BALANCER)),
    Layout("single_node_moe_dp_ep_instance.json", (*PROXIES, BALANCER)),
    Layout("h100_llama31_8b_pd.json", PROXIES, has_roles=True),
    Layout("h100_llama31_8b_pd_2p1d.json", PROXIES, has_roles=True),
)


def one_of(name: str, *values: object, share: float) -> Draw:
    """The option with one of its values in so many of the cases."""

    def draw(choice: random.Random) -> list[str]:
        return [name, str(choice.choice(values))] if choice.random() < share else []

    return draw


def flag(*names: str, share: float) -> Draw:
    """One of the flags in so many of the cases."""

    def draw(choice: random.Random) -> list[str]:
        return [choice.choice(names)] if choice.random() < share else []

    return draw


DRAFTS = [
    {"method": method, "num_speculative_tokens": tokens, "acceptance_rate": 0.6}
    for method in ("ngram", "eagle")
    for tokens in (2, 4)
]
PREFIX_CACHE = ("--enable-prefix-caching", "--no-enable-prefix-caching")
EVERY_ENGINE: tuple[Draw, ...] = (
    one_of("--max-num-seqs", 3, 8, 20, 64, share=0.4),
    flag(*PREFIX_CACHE, share=0.5),
    one_of("--max-concurrency", 2, 8, share=0.25),
    one_of("--request-timeout", 0.5, 2, share=0.15),
)
OPTIONS: dict[str, tuple[Draw, ...]] = {
    "vllm": (
        *EVERY_ENGINE,
        one_of("--max-num-batched-tokens", 256, 512, 1024, 4096, share=0.4),
        flag("--no-async-scheduling", share=0.3),
        flag("--enforce-eager", share=0.15),
        one_of("--long-prefill-token-threshold", 128, share=0.2),
        one_of("--endpoint", "chat", "completions", share=0.15),
        one_of("--kv-offloading-size", 4, share=0.1),
        one_of("--speculative-config", *map(json.dumps, DRAFTS), share=0.15),
    ),
    "sglang": (
        *EVERY_ENGINE,
        one_of("--max-num-scheduled-tokens", 256, 512, 1024, 4096, share=0.4),
        flag("--no-sglang-overlap", share=0.3),
        flag("--sglang-mixed-chunk", share=0.3),
        one_of("--sglang-schedule-policy", "lpm", "fcfs", "lof", share=0.3),
    ),
}
POOLS: dict[str, Draw] = {
    "vllm": one_of("--num-gpu-blocks-override", 400, 700, 1500, share=0.35),
    "sglang": one_of("--num-gpu-blocks-override", 6000, 9000, 20000, share=0.35),
}
TRANSFERS = (
    ["--kv-transfer", "whole", "--kv-transfer-mode", "pull"],
    ["--kv-transfer", "whole", "--kv-transfer-mode", "push"],
    ["--kv-transfer", "chunked"],
)
LONGEST = "6000"
"""Tokens of a request, for which the smallest pool has room."""


def load(choice: random.Random, seed: int) -> list[str]:
    """A bundled trace, or a drawn one of few requests."""
    if choice.random() < 0.1:
        return ["--dataset", "dataset/sessions_20.jsonl"]
    requests = choice.choice((20, 40, 60))
    if choice.random() < 0.1:
        return ["--dataset", "dataset/shared_prefix_200.jsonl", "--num-reqs", str(requests)]
    rate = choice.choice(("2", "10", "40", "inf"))
    prompts = choice.choice(("lognormal:200", "lognormal:900", "fixed:512", "uniform:10-3000"))
    answers = choice.choice(("lognormal:60", "fixed:33", "uniform:1-150"))
    shared = choice.choice(("", "", "prefixes=4:tokens=512,", "prefixes=10:tokens=1024,"))
    text = f"n={requests},rate={rate},input={prompts},output={answers},{shared}seed={seed}"
    return ["--dataset", f"synthetic:{text}"]


def case(engine: str, seed: int) -> list[str]:
    """The options of one configuration."""
    choice = random.Random(f"{engine} {seed}")
    layout = choice.choice(LAYOUTS)
    words = ["--cluster-config", f"cluster_config/{layout.cluster}", *load(choice, seed)]
    routers = layout.routers if engine == "vllm" else layout.routers[: len(PROXIES)]
    if routers:
        words += ["--request-routing-policy", choice.choice(routers)]
    if layout.has_roles and engine == "vllm":
        words += choice.choice(TRANSFERS)
    if layout.has_blocks and (pool := POOLS[engine](choice)):
        words += [*pool, "--max-model-len", LONGEST]
    for draw in OPTIONS[engine]:
        words += draw(choice)
    return words


def emulated(engine: str, python: Path, words: Sequence[str]) -> tuple[str, str]:
    """("equal", its steps), ("different", where), ("refused", why) or ("stands still", how)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmsim", "emulate", engine, "--json"]
        command += ["--engine-python", str(python), "--run-dir", folder, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=OUT_OF_TIME)
    if done.returncode == REFUSED:
        return "refused", done.stderr.strip()
    if STANDS_STILL in done.stderr:
        return "stands still", done.stderr.strip()
    if done.returncode != 0:
        return "different", f"exit code {done.returncode}: {done.stderr.strip()}"
    found = json.loads(done.stdout)
    if found["first_difference"] is not None:
        return "different", json.dumps(found["first_difference"])
    return "equal", f"{found['steps']} steps"


def main() -> None:
    """Prints a line for each configuration, and how many are equal."""
    parser = OneSentenceParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="vllm", choices=ENGINES)
    parser.add_argument("--engine-python", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.cases):
        words = [*case(given.engine, seed), *ENGINES[given.engine].options()]
        verdict, said = emulated(given.engine, given.engine_python, words)
        counts[verdict] += 1
        print(f"{seed} {verdict}: {said}\n    {' '.join(words)}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    raise SystemExit(1 if counts["different"] else 0)


if __name__ == "__main__":
    main()
