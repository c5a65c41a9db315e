"""Commands behind rows whose pages abbreviate them, from the scripts and recipes that ran them.

The table states model, devices, layout, lengths and concurrency of these rows; what else the
servers and clients were given stands there.
"""

from dataclasses import dataclass

REQUESTS_PER_SEAT = 10
"""Requests of a run for each one that its client keeps open."""
SHORTEST_SHARE = 0.8
"""Lengths are drawn uniformly from this share of the stated ones to the whole."""


@dataclass(frozen=True)
class Command:
    """What the server is given beside what the table states."""

    script: str
    """Its path under `benchmarks` of github.com/SemiAnalysisAI/InferenceX, or in another repository
    under github.com.
    """
    options: tuple[str, ...]
    spread: float = SHORTEST_SHARE
    prefix_cache: bool = False
    """As by default; InferenceX's scripts switch it off."""
    sequences_are_seats: bool = False
    """The server admits as many sequences at once as the client keeps open."""
    recv_intervals: tuple[tuple[int, int], ...] = ()
    """(least concurrency, steps of decodes after which SGLang looks for requests)."""

    def server_options(self, concurrency: int) -> tuple[str, ...]:
        """The options for a client that keeps `concurrency` requests open."""
        options = self.options
        if not self.prefix_cache:
            options += ("--no-enable-prefix-caching",)
        if self.sequences_are_seats:
            options += ("--max-num-seqs", str(concurrency))
        for least, steps in self.recv_intervals:
            if concurrency >= least:
                options += ("--sglang-scheduler-recv-interval", str(steps))
        return options


KIMI = ("--kv-cache-dtype", "fp8", "--prefill-schedule-interval", "4")
COMMANDS = {
    "kimi_b200": Command(
        "single_node/kimik2.5_fp4_b200.sh",
        (*KIMI, "--gpu-memory-utilization", "0.80"),
        sequences_are_seats=True,
    ),
    "kimi_b300": Command(
        "single_node/kimik2.5_fp4_b300.sh",
        (*KIMI, "--gpu-memory-utilization", "0.85"),
        sequences_are_seats=True,
    ),
    "dsr1fp4_b200_sgl": Command(
        "dsr1_fp4_b200.sh",
        (
            *("--max-num-batched-tokens", "16384", "--max-num-seqs", "256"),
            *("--gpu-memory-utilization", "0.85", "--kv-cache-dtype", "fp8"),
        ),
        recv_intervals=((0, 10), (16, 30)),
    ),
    "nemotron_h200": Command(
        "vllm-project/recipes/NVIDIA/Nemotron-3-Nano-30B-A3B.md",
        ("--async-scheduling", "--kv-cache-dtype", "fp8"),
        spread=1.0,
        prefix_cache=True,
    ),
    "dsr1_h200_sgl": Command(
        "dsr1_fp8_h200.sh",
        (
            *("--max-num-batched-tokens", "32768", "--sglang-max-prefill-tokens", "32768"),
            *("--max-num-seqs", "512", "--gpu-memory-utilization", "0.82"),
        ),
    ),
}
"""Row's name without its concurrency -> its command. The recipe of Nemotron also asks for
FlashInfer's experts (VLLM_USE_FLASHINFER_MOE_FP8), whose times nobody measured without a gate.
"""


def command_of(row: str) -> Command | None:
    """The command of a row of the table; None where its page states all that there is."""
    without_load, _, load = row.rpartition("_c")
    return COMMANDS.get(without_load if load.isdigit() else row)
