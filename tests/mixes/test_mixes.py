"""Random clusters with random options: each runs with all that has to hold, or is refused in one
sentence.
"""

from pathlib import Path

import pytest

from mixes.checks import check

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("seed", range(60))
def test_a_mix_keeps_what_it_must(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMSIM_DEBUG", "1")
    monkeypatch.syspath_prepend(str(TESTS))  # of the policies in Python
    check(seed, tmp_path)
