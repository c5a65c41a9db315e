"""Successive halving: what stays for the next rung, and which margin a point needs."""

from pathlib import Path

import numpy as np
import pytest

from llmsim.search.journal import Trial
from llmsim.search.successive_halving.halving import near, needed_margin
from tests.search.test_model_spaces import space


@pytest.mark.parametrize("seed", range(4))
def test_a_point_stays_from_its_needed_margin_on(seed: int, tmp_path: Path) -> None:
    asked = space(tmp_path)
    draw = np.random.default_rng(seed)
    labels = list(asked.plans)
    trials = [
        Trial(
            {"deployment": str(draw.choice(labels)), "number": number},
            "feasible",
            "",
            {
                "output_throughput": float(draw.lognormal(5, 0.2)),
                "p95_tpot_ms": float(draw.lognormal(2, 0.2)),
                "p95_ttft_ms": float(draw.uniform(100, 350)),
            },
            "",
        )
        for number in range(60)
    ]
    needed = [needed_margin(asked, trials, at) for at in range(len(trials))]
    assert min(needed) < 2e-3 < max(needed)
    for at, least in enumerate(needed):
        assert at in near(asked, trials, least)
        assert least < 2e-3 or at not in near(asked, trials, least - 2e-3)


def test_neighbours_that_are_compiled_alike_are_found() -> None:
    from llmsim.search.trials import _compiled_alike

    point = {"deployment": "2 x TP1", "--max-num-seqs": 16, "rate": 2.0, "--num-reqs": 250}
    assert _compiled_alike(point) == _compiled_alike({**point, "rate": 3.0, "--num-reqs": 2000})
    assert _compiled_alike(point) != _compiled_alike({**point, "--max-num-seqs": 32})
