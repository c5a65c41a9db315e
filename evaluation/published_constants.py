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

from llmsim.cli.arguments import OneSentenceParser
from llmsim.config import load_profile

NS_PER_S = 1e9
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Derived:
    """A constant by its run, and as the engine profile has it, ns."""

    name: str
    run: str
    found_ns: float
    profile_ns: int


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
    print("| constant | run | derived, ms | engine profile, ms |")
    print("| --- | --- | ---: | ---: |")
    for one in found:
        print(
            f"| {one.name} of {profile_of(points[one.run])} | {one.run} | {one.found_ns / 1e6:.2f} "
            f"| {one.profile_ns / 1e6:.2f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
