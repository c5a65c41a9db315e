"""How often `llmsim diff` calls chance a change, and how often it sees a change of 2 %.

usage: python evaluation/diff_pairs.py [--pairs N] [--first-seed S] [--requests N] [--change PCT]

Each pair draws a deployment of two to four instances, a trace, and two seeds of the router, which
sends requests at random: that is the chance. A pair without a change differs in the router's seed
alone. In a pair with a change, every step of run B also takes `--change` percent longer, relative
to the mean TPOT of run A. A false alarm is any metric that `diff` calls significant in a pair
without a change. A change counts as seen where the mean TPOT is significant and higher.
"""

import copy
from dataclasses import dataclass

import numpy as np
import pandas as pd
from why import DEVICES, MODEL, poisson

import llmsim
from llmsim.api.result import Result
from llmsim.cli.arguments import OneSentenceParser
from llmsim.validation.compare.difference import Difference, differences
from llmsim.validation.logs.pairing import pair
from llmsim.validation.logs.recording import recording_of

METRIC = "mean_tpot_ms"


@dataclass(frozen=True)
class Case:
    """A deployment, its trace, and what each step of run B takes beyond run A's, in ns."""

    fields: dict[str, object]
    requests: pd.DataFrame
    seeds: tuple[int, int]

    def run(self, side: int, extra_ns: float = 0.0) -> Result:
        """Run A (side 0) or B (side 1); its steps take `extra_ns` longer."""
        fields = copy.deepcopy(self.fields)
        fields["engine"] = {"host_gap_ns": extra_ns}
        how = {"request_routing_policy": "RAND", "seed": self.seeds[side]}
        return llmsim.run(fields, self.requests, **how)


def drawn(seed: int, requests: int) -> Case:
    """A healthy deployment of two to four instances at half to all of a moderate load."""
    draw = np.random.default_rng([seed, 21])
    device, instances = str(draw.choice(list(DEVICES))), int(draw.integers(2, 5))
    rate = DEVICES[device] * instances * draw.uniform(0.5, 1.0)
    fields = llmsim.Cluster.build(MODEL, device, instances=instances).fields()
    return Case(fields, poisson(draw, rate, requests), (2 * seed, 2 * seed + 1))


def compared(a: Result, b: Result) -> dict[str, Difference]:
    """What `llmsim diff` says of the two runs."""
    return differences([pair(recording_of(a._results), recording_of(b._results))])


def main() -> None:
    """Prints the pairs that went wrong and the two shares."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--change", type=float, default=2.0)
    given = parser.parse_args()
    alarms = seen = 0
    for seed in range(given.first_seed, given.first_seed + given.pairs):
        case = drawn(seed, given.requests)
        a = case.run(0)
        unchanged = compared(a, case.run(1))
        alarmed = [name for name, one in unchanged.items() if one.significant]
        extra_ns = unchanged[METRIC].a * 1e6 * given.change / 100
        found = compared(a, case.run(1, extra_ns))[METRIC]
        is_seen = bool(found.significant) and found.b > found.a
        alarms, seen = alarms + bool(alarmed), seen + is_seen
        if alarmed:
            print(f"pair {seed}: false alarm in {', '.join(alarmed)}")
        if not is_seen:
            print(f"pair {seed}: {METRIC} {found.delta_pct:+.2f} %, interval {found.ci}: not seen")
    print(f"false alarms: {alarms} of {given.pairs} pairs without a change")
    print(f"seen: {seen} of {given.pairs} changes of {given.change:g} %")


if __name__ == "__main__":
    main()
