"""Random combinations of roles, layouts, tiers, drafts, rankings, sessions and small caches."""

import pytest

from evaluation.mixtures import drawn, problem

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_mixture_holds_or_is_refused(seed: int) -> None:
    assert problem(drawn(seed)) in ("", "refused")


def test_most_mixtures_run() -> None:
    """A draw that is always refused would test nothing."""
    kinds = [problem(drawn(seed), whole=False) for seed in SEEDS]
    assert kinds.count("refused") < len(kinds) / 2
