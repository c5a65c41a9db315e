"""Which points nothing beats."""

from collections.abc import Sequence


def pareto_front(values: Sequence[Sequence[float]]) -> list[int]:
    """Indices of rows, all figures to be small, to which no other row is as good in each and better
    in one.
    """
    return [i for i, row in enumerate(values) if not any(_beats(other, row) for other in values)]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(
        a < b for a, b in zip(one, other, strict=True)
    )
