"""Writes what became of the mutants: a line each while they are tested, then the score and the
survivors.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mutation.runner import Verdict


def line_of(verdict: Verdict) -> str:
    mutant = verdict.mutant
    return f"{verdict.status:<12} {mutant.path}:{mutant.line} {mutant.operator} ({verdict.why})"


def summary_of(verdicts: Sequence[Verdict]) -> str:
    """The survivors with their diffs, and the score: the killed of those that count."""
    counts = Counter(verdict.status for verdict in verdicts)
    killed, survived = counts["killed"], counts["survived"]
    lines = []
    for verdict in verdicts:
        if verdict.status == "survived":
            lines += [f"\n{line_of(verdict)}", verdict.diff]
    others = ", ".join(
        f"{counts[status]} {status}"
        for status in sorted(counts)
        if status not in ("killed", "survived")
    )
    share = f"{100 * killed / (killed + survived):.1f} %" if killed + survived else "none"
    lines.append(
        f"\nMutation score: {share} ({killed} of {killed + survived} killed; not counted: "
        f"{others or 'none'})"
    )
    return "\n".join(lines)


def write_report(path: Path, verdicts: Sequence[Verdict]) -> None:
    rows = [
        {
            "path": verdict.mutant.path,
            "line": verdict.mutant.line,
            "operator": verdict.mutant.operator,
            "status": verdict.status,
            "why": verdict.why,
            "before": verdict.before,
            "after": verdict.after,
        }
        for verdict in verdicts
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1))
