"""Rules such as `p99_ttft_ms>+5%`, which a difference of two runs breaks or keeps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from llmsim.config.errors import InputError, nearest
from llmsim.validation.compare.difference import Difference

_RULE = re.compile(r"\s*([a-z0-9_]+)\s*(>=|<=|>|<)\s*([+-]?)([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")


@dataclass(frozen=True)
class Rule:
    """Fails where a metric changed by more than allowed, or is beyond a bound."""

    text: str
    metric: str
    above: bool
    or_equal: bool
    limit: float
    kind: str
    """"percent" (of A), "change" (B minus A) or "value" (of B)."""

    def fails(self, found: Mapping[str, Difference]) -> bool:
        """Whether the runs break the rule; a change that may be chance breaks none."""
        return self.is_beyond(found) and not self.may_be_chance(found)

    def may_be_chance(self, found: Mapping[str, Difference]) -> bool:
        """Whether the rule is about a change that chance explains."""
        return self.kind != "value" and found[self.metric].significant is False

    def is_beyond(self, found: Mapping[str, Difference]) -> bool:
        """Whether the figures are beyond the bound."""
        one = found[self.metric]
        value = {"percent": one.delta_pct, "change": one.b - one.a, "value": one.b}[self.kind]
        if value is None:  # A is 0: any percentage is exceeded
            return self.above
        beyond = value > self.limit if self.above else value < self.limit
        return beyond or (self.or_equal and value == self.limit)


def parse_rule(text: str, found: Mapping[str, Difference]) -> Rule:
    """Reads METRIC, a comparison and a bound: `+5%` of A, `-3` by which B changes, or `200` for B.

    Raises InputError for another form, and for a metric that the runs do not have.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise InputError(
            f"--fail-if {text!r:.60} is no rule; give a metric, >, >=, < or <=, and a bound, such "
            "as p99_ttft_ms>+5%"
        )
    metric, comparison, sign, number, percent = match.groups()
    if metric not in found:
        raise InputError(
            f"--fail-if {text!r:.60}: there is no metric {metric}{nearest(metric, found)}; there "
            f"are {', '.join(found)}"
        )
    limit = float(sign + number)
    kind = "percent" if percent else "change" if sign else "value"
    return Rule(text, metric, comparison[0] == ">", comparison[1:] == "=", limit, kind)
