"""Where simulated times come from: shares of the busy time by source and by provenance."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from llmsim.core import Provenance, TimeShare

KNOWN = (Provenance.MEASURED, Provenance.INTERPOLATED)
DIGITS = 6
LEAST_SHOWN = 0.005
"""Shares below are 0 % of a text."""


class TimeSources(Struct, frozen=True):
    """Busy time of all operators of a run, ps, by where its numbers came from."""

    by_source: tuple[tuple[str, int], ...]
    """The longest first."""
    by_provenance: tuple[int, ...]
    """In the order of `Provenance`."""

    @classmethod
    def of(cls, shares: Iterable[TimeShare]) -> "TimeSources":
        """The sums of operators' shares."""
        by_source: dict[str, int] = {}
        by_provenance = [0] * len(Provenance)
        for share in shares:
            by_source[share.source] = by_source.get(share.source, 0) + sum(share.ps_by_provenance)
            for code, part_ps in enumerate(share.ps_by_provenance):
                by_provenance[code] += part_ps
        ranked = sorted(by_source.items(), key=lambda item: (-item[1], item[0]))
        return cls(tuple(ranked), tuple(by_provenance))

    @property
    def total_ps(self) -> int:
        """All of it."""
        return sum(self.by_provenance)

    @property
    def known(self) -> float:
        """The share that was measured, or interpolated between measured points; 0 of nothing."""
        return sum(self.by_provenance[code] for code in KNOWN) / max(1, self.total_ps)

    @property
    def words(self) -> str:
        """`97% measured or interpolated, 3% analytic`, the largest share first."""
        parts = {"measured or interpolated": self.known} | {
            code.name.lower(): self.by_provenance[code] / max(1, self.total_ps)
            for code in Provenance
            if code not in KNOWN
        }
        ranked = sorted(parts.items(), key=lambda item: -item[1])
        return ", ".join(f"{share:.0%} {name}" for name, share in ranked if share >= LEAST_SHOWN)

    def as_json(self) -> dict[str, Any]:
        """Shares by source and by provenance; None of nothing."""
        return {
            "by_source": {source: share_of(ps, self.total_ps) for source, ps in self.by_source},
            "by_provenance": provenance(self.by_provenance, self.total_ps),
        }


def provenance(ps: Iterable[int], total_ps: int) -> dict[str, float | None]:
    """The share of each provenance, by its name."""
    return {
        code.name.lower(): share_of(part, total_ps)
        for code, part in zip(Provenance, ps, strict=True)
    }


def share_of(part_ps: int, total_ps: int) -> float | None:
    """A share with as many digits as a summary has; None of nothing."""
    return round(part_ps / total_ps, DIGITS) if total_ps else None
