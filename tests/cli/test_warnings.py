"""What the package warns of is one sentence of the command, told once."""

import warnings

import pytest

from llmsim.cli import guarded


def test_a_warning_is_one_sentence_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        for _ in range(2):
            warnings.warn("2 of 40 requests can never run", UserWarning, stacklevel=1)
        return 0

    before = warnings.showwarning
    assert guarded(command) == 0
    assert capsys.readouterr().err == "llmsim: note: 2 of 40 requests can never run\n"
    assert warnings.showwarning is before
