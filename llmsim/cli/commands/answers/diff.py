"""`llmsim diff`: what changed between two runs, and whether it is more than chance."""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmsim.config.errors import InputError
from llmsim.plurals import counted, plural

if TYPE_CHECKING:
    from llmsim.validation.compare.difference import Difference
    from llmsim.validation.compare.rules import Rule
    from llmsim.validation.logs.pairing import Pairs

HELP = (
    "Compare two runs request by request and say which differences are more than chance. A run is "
    "a run folder, requests.parquet, or a log that `llmsim validate` reads; a folder of run "
    "folders holds one run per seed."
)
DIGITS = 6

A = Annotated[Path, typer.Argument(help="Names the first run.", show_default=False)]
B = Annotated[Path, typer.Argument(help="Names the second run.", show_default=False)]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help=(
            "Ends with exit code 1 where the rule holds, such as p99_ttft_ms>+5% (of the first "
            "run), mean_tpot_ms>+2 (more than it) or p99_e2el_ms>900 (of the second); repeatable."
        ),
        show_default=False,
    ),
]
Alpha = Annotated[
    float,
    typer.Option("--alpha", help="Sets the chance of any false alarm over all metrics."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON instead of a table.")]


def command(
    a: A, b: B, fail_if: FailIf = None, alpha: Alpha = 0.05, as_json: AsJson = False
) -> int:
    """Compares and prints; raises InputError. Returns 1 where a rule holds, else 0."""
    from llmsim.validation.compare.difference import differences
    from llmsim.validation.compare.given import given_differently
    from llmsim.validation.compare.rules import parse_rule

    if not 0 < alpha < 1:
        raise InputError(f"--alpha is {alpha:g}; it must be between 0 and 1, such as 0.05")
    pairs = _pairs(a, b)
    found = differences(pairs, alpha)
    rules = [parse_rule(text, found) for text in fail_if or ()]
    broken = [rule for rule in rules if rule.fails(found)]
    if as_json:
        text = _json(found)
    else:
        verdicts = [line for rule in rules for line in _verdict(rule, found)]
        text = _table(found, pairs, verdicts, given_differently(a, b))
    sys.stdout.write(text)
    if broken and as_json:
        for rule in broken:
            print(_broken(rule, found), file=sys.stderr)
    return 1 if broken else 0


def _pairs(a: Path, b: Path) -> "list[Pairs]":
    from llmsim.validation.logs.pairing import pair
    from llmsim.validation.logs.reader import read_recording

    first, second = _runs(a), _runs(b)
    if len(first) != len(second):
        raise InputError(
            f"{a} holds {counted(len(first), 'run')} and {b} holds {len(second)}; give as many of "
            "each, one per seed"
        )
    if len(first) > 1 and [one.name for one in first] != [one.name for one in second]:
        raise InputError(
            f"the runs of {a} and {b} have different names; name the folders of one seed alike"
        )
    return [
        pair(read_recording(one), read_recording(other))
        for one, other in zip(first, second, strict=True)
    ]


def _runs(path: Path) -> list[Path]:
    """A run, or the runs in the folder, in order of their names."""
    if not path.is_dir() or (path / "requests.parquet").is_file():
        return [path]
    inside = sorted(one.parent for one in path.glob("*/requests.parquet"))
    return inside or [path]


def _json(found: "dict[str, Difference]") -> str:
    fields = {name: _shown(one) for name, one in found.items()}
    return json.dumps(fields, indent=2) + "\n"


def _shown(one: "Difference") -> dict[str, Any]:
    ci = None if one.ci is None else [round(bound, DIGITS) for bound in one.ci]
    delta = one.delta_pct
    return {
        "a": round(one.a, DIGITS),
        "b": round(one.b, DIGITS),
        "delta_pct": None if delta is None else round(delta, DIGITS),
        "ci": ci,
        "p": None if one.p is None else round(one.p, DIGITS),
        "significant": one.significant,
    }


def _table(
    found: "dict[str, Difference]", pairs: "list[Pairs]", verdicts: list[str], given: str | None
) -> str:
    requests = sum(len(one.real) for one in pairs)
    changed = sum(one.significant is True for one in found.values())
    differ = plural(changed, "differs", "differ")
    lines = [
        f"{counted(requests, 'request pair')} in {counted(len(pairs), 'pair')} of runs; "
        f"{changed} of {len(found)} metrics {differ} by more than chance (*)",
        *([] if given is None else [given]),
        f"{'metric':20}{'A':>14}{'B':>14}{'change %':>11}  confidence interval %",
    ]
    lines += [_row(name, one) for name, one in found.items()]
    lines += _about_chance(found.values(), changed)
    if len(pairs) == 1:
        lines.append(
            "Throughput and duration are one number per run; runs of several seeds say how far "
            "chance moves them."
        )
    lines += [f"note: {sentence}" for sentence in _notes(pairs)]
    lines += verdicts
    return "\n".join(lines) + "\n"


def _notes(pairs: "list[Pairs]") -> list[str]:
    """What the runs say of how far they can be compared, each sentence once."""
    from llmsim.validation.compare.comparability import unlike_lengths

    found_in_pairs = [finding for one in pairs for finding in one.findings]
    unlike = [finding for one in pairs for finding in unlike_lengths(one.real, one.simulated)]
    return list(dict.fromkeys(finding.sentence for finding in (*found_in_pairs, *unlike)))


def _row(name: str, one: "Difference") -> str:
    delta = "-" if one.delta_pct is None else f"{one.delta_pct:+.2f}"
    interval = "-" if one.ci is None else f"{one.ci[0]:+.2f} to {one.ci[1]:+.2f}"
    mark = "*" if one.significant else ""
    return f"{name:20}{one.a:>14,.3f}{one.b:>14,.3f}{delta:>11}  {interval} {mark}".rstrip()


def _about_chance(found: "Collection[Difference]", changed: int) -> list[str]:
    """A sentence where the intervals alone would mislead."""
    tested = [one.p for one in found if one.p is not None]
    if not tested:
        return ["So few requests do not say which differences of latencies are chance."]
    if all(p == 1 for p in tested):
        return ["No latency of any request differs."]
    if changed < sum(_without_zero(one) for one in found):
        return [
            "An interval without 0 may be chance where so many metrics are tested (Holm's "
            "procedure): only those with a * are more than that."
        ]
    return []


def _without_zero(one: "Difference") -> bool:
    """Whether the confidence interval leaves no change out."""
    return one.ci is not None and not one.ci[0] <= 0 <= one.ci[1]


def _verdict(rule: "Rule", found: "dict[str, Difference]") -> list[str]:
    """What is to say of a rule: that it fails, or that a change beyond it may be chance."""
    if rule.fails(found):
        return [_broken(rule, found)]
    if rule.is_beyond(found):
        return [f"passed: {_went(rule, found)}, which may be chance; more requests or seeds tell"]
    return []


def _broken(rule: "Rule", found: "dict[str, Difference]") -> str:
    return f"failed: {_went(rule, found)}"


def _went(rule: "Rule", found: "dict[str, Difference]") -> str:
    one = found[rule.metric]
    return f"{rule.text}: {rule.metric} went from {one.a:,.3f} to {one.b:,.3f}"
