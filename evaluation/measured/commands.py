"""Commands behind rows whose pages abbreviate them: the scripts of InferenceX.

The table states model, devices, layout, lengths and concurrency of these rows; what else the
servers and clients were given stands in the scripts that ran them.
"""

from dataclasses import dataclass

REQUESTS_PER_SEAT = 10
"""Requests of a run for each one that its client keeps open."""
SHORTEST_SHARE = 0.8
"""Lengths are drawn uniformly from this share of the stated ones to the whole."""


@dataclass(frozen=True)
class Command:
    """What a script gives the server, beside what the table states; none has a prefix cache."""

    script: str
    """Its path under `benchmarks` of github.com/SemiAnalysisAI/InferenceX."""
    options: tuple[str, ...]
    sequences_are_seats: bool = False
    """The server admits as many sequences at once as the client keeps open."""
    recv_intervals: tuple[tuple[int, int], ...] = ()
    """(least concurrency, steps of decodes after which SGLang looks for requests)."""

    def server_options(self, concurrency: int) -> tuple[str, ...]:
        """The options for a client that keeps `concurrency` requests open."""
        options = (*self.options, "--no-enable-prefix-caching")
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
    "dsr1_h200_sgl": Command(
        "dsr1_fp8_h200.sh",
        (
            *("--max-num-batched-tokens", "32768", "--sglang-max-prefill-tokens", "32768"),
            *("--max-num-seqs", "512", "--gpu-memory-utilization", "0.82"),
        ),
    ),
}
"""Row's name without its concurrency -> its command."""


def command_of(row: str) -> Command | None:
    """The command of a row of the table; None where its page states all that there is."""
    return COMMANDS.get(row.rpartition("_c")[0])
