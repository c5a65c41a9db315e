"""Reads the table of published measurements: one `Point` for each server, load and page."""

import csv
import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from measured.commands import REQUESTS_PER_SEAT, Command, command_of

METRICS = ("throughput", "ttft", "tpot")
"""Output tokens per second, mean time to first token and mean time per output token."""
TRACE = "groundtruth/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl"
GRADES = "ABC"


class Skipped(Exception):
    """A point cannot be simulated here; the text says why."""


@dataclass(frozen=True)
class Point:
    """One published measurement; `real` holds what the page states, in seconds and tokens/s."""

    name: str
    source: str
    engine: str
    version: str
    """Empty: the page does not state it."""
    model: str
    hardware: str
    devices: int
    layout: str
    requests: int
    input_tokens: float
    output_tokens: float
    concurrency: int
    """0: no limit."""
    options: tuple[str, ...]
    grade: str
    real: dict[str, float]
    lengths: tuple[tuple[int, int], ...] = ()
    """(input, output) tokens of each request where the page has them."""
    sampled: bool = False
    """Lengths follow ShareGPT, scaled to the published means."""
    spread: float = 1.0
    """Lengths are uniform from this share of the published ones to the whole."""
    rate_per_s: float = 0.0
    """Requests per second of the client, at random times; 0: all at once."""
    pd_types: tuple[str | None, ...] = (None,)
    """Role of each instance."""
    era: str = ""
    """What the page states in place of a version, such as its month."""
    median_tpot: bool = False
    """The page states the median of TPOT instead of its mean."""
    endpoint: str = ""
    """What the page's client asked: "chat" or "completions"; empty: not known."""
    trace: str = ""
    """Trace of the data folder that the run served, with its arrivals."""
    running: int = 0
    """Most sequences at once that the page's command allows; 0: it does not say."""

    gives: str = ""
    """The constant of the simulator that comes from this run; empty: none, or one of `GAVE`."""
    doubt: str = ""
    """Why its page's own figures cannot be those of the card that it states; empty: they can."""

    @property
    def gave(self) -> str:
        """The constant of the simulator that comes from this run; empty: none."""
        return self.gives or GAVE.get(self.name, "")

    @property
    def counted(self) -> bool:
        """Whether medians, intervals and targets include the row."""
        return self.grade in "AB" and not self.gave

    @property
    def contradiction(self) -> str:
        """What in the row's own figures cannot be true together; empty: nothing.

        By Little's law, tokens/s times the time per token is the mean number of sequences that
        decode. It cannot exceed what the client and the engine's options allow.
        """
        if not {"throughput", "tpot"} <= set(self.real):
            return ""
        decoding = self.real["throughput"] * self.real["tpot"]
        limits = (self.requests, self.concurrency, self.running)
        most = min((limit for limit in limits if limit), default=0)
        if not most or decoding <= SLACK * most:
            return ""
        return f"{decoding:.0f} sequences decode by its throughput and TPOT, of at most {most}"

    @property
    def system(self) -> str:
        """What is left out together: one model on one kind of machine."""
        return f"{self.model} on {self.devices} {self.hardware}"


GAVE = {"q8_h100_bs1": "host.step_ns of the profile vllm-0.11"}
"""Rows that gave a constant: they are shown, but not counted."""
SLACK = 1.05
"""How far the figures of a page may miss its own limits, since they are rounded means."""


def read_points(path: Path) -> list[Point]:
    """Every row with a time or a throughput; rows of start-up logs are in the KV table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    points = [_point(row) for row in rows if not row["id"].startswith("kv_")]
    return [replace(one, grade="C") if one.contradiction else one for one in points]


LENGTHS = {
    "lambda_mistral7b_h100_10": (
        (14, 30, 28, 12, 29, 487, 369, 5, 236),
        (129, 890, 273, 169, 928, 10, 26, 8, 57),
    )
}
"""Lengths that a page's result file lists; a tenth request got no token and is left out."""
CORRECTED_MS = {"lambda_mistral7b_h100_10": {"ttft": 51.811695587821305 * 10 / 9}}
"""Means of the requests that ran: the file counts the one without a token as 0 ms."""

CORRECTED_VERSIONS = {"o120_a100_share_c4": "0.11.0"}
"""Versions that a page states and the table does not: the page of gpt-oss-120b on A100 names vLLM
0.11.0, and its results have the lines on peaks that the client prints since then.
"""


def _point(row: dict[str, str]) -> Point:
    real = {
        "throughput": _number(row["real_output_tok_s"]),
        "ttft": _number(row["real_mean_ttft_ms"]) / 1e3,
        "tpot": _number(row["real_mean_tpot_ms"]) / 1e3,
    }
    real |= {name: ms / 1e3 for name, ms in CORRECTED_MS.get(row["id"], {}).items()}
    requests = _number(row["n_requests"])
    limit = row["max_concurrency"]
    inputs, outputs = row["input_tokens"], row["output_tokens"]
    stated = CORRECTED_VERSIONS.get(row["id"], row["engine_version"])
    version = stated.removeprefix("SGLang ").split(";")[0]
    lengths_are_means = "." in inputs
    of_share_gpt = inputs == "ShareGPT" or "ShareGPT" in row["note"]
    concurrency = 0 if limit == "inf" else int(limit)
    command = command_of(row["id"])
    if command is not None and math.isnan(requests):
        requests = REQUESTS_PER_SEAT * concurrency
    return Point(
        name=row["id"],
        source=row["source"],
        engine=row["engine"],
        version=version if version[:1].isdigit() else "",
        era=row["engine_version"],
        model=row["model"],
        hardware=row["hardware"],
        devices=int(row["gpus_tp"]),
        layout=row["layout"],
        requests=0 if math.isnan(requests) else int(requests),
        input_tokens=_number(inputs),
        output_tokens=_number(outputs),
        concurrency=concurrency,
        options=_options(row, command, concurrency),
        running=_most_running(row["serve_options"]),
        endpoint=_endpoint(row["source"]),
        grade=row["grade"],
        real={name: value for name, value in real.items() if not math.isnan(value)},
        lengths=tuple(zip(*LENGTHS.get(row["id"], ()), strict=True)),
        median_tpot="TPOT is the median" in row["note"],
        spread=1.0 if command is None else command.spread,
        sampled=lengths_are_means or of_share_gpt,
    )


ENDPOINTS = {
    "gpustack": "chat",
    "LambdaLabsML": "completions",
    "InferenceX": "completions",
    "aisimulate": "completions",
    "recipes": "completions",
}
"""Pages that state their client's endpoint: vllm bench serve --backend openai-chat; result files
with the backend vllm, which asks for completions; benchmark_lib.sh of InferenceX, whose default is
completions, also for the servers that AISimulate's page compares with; vllm bench serve of vLLM's
recipes without a backend.
"""
SERVE_OPTIONS = ("--max-model-len", "--gpu-memory-utilization")
"""Options of the published command that the simulator has, too; each takes a value."""


def _endpoint(source: str) -> str:
    """What the client of a page asked; empty: the page does not say."""
    return next((name for page, name in ENDPOINTS.items() if page in source), "")


def _options(row: dict[str, str], command: Command | None, concurrency: int) -> tuple[str, ...]:
    """What the published command, or the row's note on the run, says of the engine."""
    if command is not None:
        return command.server_options(concurrency)
    words = row["serve_options"].split() + row["sim_options"].split()
    found: dict[str, str] = {}
    for option, value in pairwise(words):
        if option in (*SERVE_OPTIONS, "--dtype"):
            found.setdefault(option, value)
    if "--no-enable-prefix-caching" in words:
        found["--no-enable-prefix-caching"] = ""
    return tuple(word for pair in found.items() for word in pair if word)


def _most_running(serve_options: str) -> int:
    """The limit of running sequences in a published command."""
    found = re.search(r"max-num-seqs?[ =](\d+)", serve_options)
    return int(found[1]) if found else 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
