"""Derives the constants of engine profiles that come from published runs, and shows them beside the
profiles' own.

usage: python evaluation/published_constants.py [--data DIR]

Each run is simulated without the constant; what it then lacks of the published time is the
constant. The runs are no rows of the table of published measurements (measured/beside.py).
"""

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from measured.beside import beside_points
from measured.points import Point
from measured.runs import profile_of, simulate

import llmsim
from llmsim.cli.arguments import OneSentenceParser
from llmsim.config import load_profile

NS_PER_S, PS_PER_NS = 1e9, 1000
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Derived:
    """A constant by its run, and as the engine profile has it, ns."""

    name: str
    run: str
    found_ns: float
    profile_ns: int


@dataclass(frozen=True)
class ChatsAtOnce:
    """A run whose page states how many tokens it streamed in its best second."""

    name: str
    profile: str
    model: str
    hardware: str
    requests: int
    input_tokens: int
    output_tokens: int
    best_second_tokens: int

    @property
    def load(self) -> str:
        """All of them at once."""
        lengths = f"input=fixed:{self.input_tokens},output=fixed:{self.output_tokens}"
        return f"synthetic:n={self.requests},rate=1e9,{lengths}"


CHATS_AT_ONCE = ChatsAtOnce(
    "o20_h100_share", "vllm-0.11", "openai/gpt-oss-20b", "H100", 1000, 219, 201, 15_953
)
"""gpt-oss-20b on one H100, 1,000 ShareGPT prompts at once (vLLM 0.11.0, synchronous; gpustack
performance lab). Prompts and answers have the mean lengths of that lab's ShareGPT runs of
DeepSeek-R1. With async scheduling the page's best second is the API server's: 22,786 tokens.
"""


def between_ranks(point: Point, data: Path, scratch: Path) -> Derived:
    """What a step of several devices takes beyond the same step with one device's host time."""
    profile = load_profile(profile_of(point))
    no_gap = simulate(point, data, scratch, ("--disable-term", "host_gap"))
    gap_ns = (point.real["tpot"] - no_gap.metrics["tpot"]) * NS_PER_S
    found_ns = gap_ns - profile.host_gap_ns
    return Derived("host.ranks_ns", point.name, found_ns, profile.host_ranks_ns)


def of_requests(point: Point, data: Path, scratch: Path, at_once: int) -> Derived:
    """What the first tokens of `at_once` requests take beyond the engine, for each of them."""
    profile = load_profile(profile_of(point))
    engine_alone = simulate(replace(point, endpoint=""), data, scratch)
    lacking_s = point.real["ttft"] - engine_alone.metrics["ttft"]
    costs = profile.frontend[point.endpoint]
    found_ns = lacking_s * NS_PER_S / at_once
    return Derived(f"{point.endpoint}.request_ns", point.name, found_ns, costs.request_ns)


def of_sequences() -> Derived:
    """What the host takes for each sequence of a synchronous step: the best second's share of a
    step, beyond the same step without a host and the time that one has whatever its sequences.
    """
    profile = load_profile(CHATS_AT_ONCE.profile)
    cluster = llmsim.Cluster.build(CHATS_AT_ONCE.model, CHATS_AT_ONCE.hardware)
    ran = llmsim.run(
        cluster,
        CHATS_AT_ONCE.load,
        cost_source="silicon",
        engine_profile=CHATS_AT_ONCE.profile,
        disable_term=["host_gap", "host_sequence"],
    ).steps
    full = ran[(ran.prefill_tokens == 0) & (ran.sequences > 0.9 * CHATS_AT_ONCE.requests)]
    sequences = float(full.sequences.mean())
    step_ns = float((full.end_ps - full.start_ps).mean()) / PS_PER_NS
    published_ns = sequences / CHATS_AT_ONCE.best_second_tokens * NS_PER_S
    found_ns = (published_ns - step_ns - profile.host_gap_ns) / sequences
    return Derived("host.sequence_ns", CHATS_AT_ONCE.name, found_ns, profile.host_sequence_ns)


def main() -> int:
    parser = OneSentenceParser(prog="published_constants", description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    data = parser.parse_args().data
    points = {point.name: point for point in beside_points()}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        found = [
            between_ranks(points["glm46_h200_c4"], data, scratch),
            of_requests(points["q8_h100_sgl_c4"], data, scratch, 1),
            of_requests(points["lambda_llama8b_h100_10"], data, scratch, 10),
        ]
    profiles = [profile_of(points[one.run]) for one in found]
    print("| constant | run | derived, ms | engine profile, ms |")
    print("| --- | --- | ---: | ---: |")
    rows = zip([*found, of_sequences()], [*profiles, CHATS_AT_ONCE.profile], strict=True)
    for one, profile in rows:
        print(
            f"| {one.name} of {profile} | {one.run} | {one.found_ns / 1e6:.3f} "
            f"| {one.profile_ns / 1e6:.3f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
