"""Control characters of files and arguments reach neither a terminal nor the JSON on standard
output.
"""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.cli import main
from llmsim.cli.streams import Printable, printable_streams, raw
from llmsim.config.printing import LONGEST_SENTENCE, one_line, printable

ESCAPES = "\x1b[2J\x1b]0;pwned\x07"


@given(st.text())
def test_what_is_printed_is_printable_and_says_the_same(text: str) -> None:
    shown = printable(text)
    assert all(
        character in "\n\t" or character.isprintable() or ord(character) > 159
        for character in shown
    )
    shown.encode("utf-8")
    document = json.dumps({"key": text}, ensure_ascii=False)
    assert json.loads(printable(document)) == {"key": text}


@given(st.text())
def test_an_error_is_one_line(text: str) -> None:
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


def test_a_long_value_is_cut_in_the_middle() -> None:
    cut = one_line("f:1: " + "x" * 100_000 + " must be a number")
    assert len(cut) < LONGEST_SENTENCE + 100
    assert (
        cut.startswith("f:1: x") and cut.endswith(" must be a number") and "characters more" in cut
    )


def test_a_long_word_is_cut_and_a_long_sentence_of_short_ones_is_not() -> None:
    words = "a model of the list " * 100
    cut = one_line("m" * 5000 + f": no such file; {words}")
    assert len(cut) < 2600 and cut.startswith("mmm") and cut.endswith(words)


@pytest.mark.parametrize("make", ["trace", "argument", "note", "json"])
def test_no_command_prints_them(
    make: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"arrival,{ESCAPES}\n1,2\n")
    words = ["trace", "inspect", str(path)]
    if make == "argument":
        words = ["trace", "inspect", f"no{ESCAPES}\nllmsim: error: forged"]
    elif make in ("note", "json"):
        path.write_text(f"timestamp,input_tokens,output_tokens,{ESCAPES}\n1,2,3,4\n")
        words += ["--json"] * (make == "json")
    assert main(words) == (2 if make in ("trace", "argument") else 0)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\x07" not in said.out + said.err
    assert "\\u001b[2J" in said.out + said.err
    assert said.err.count("\n") <= 1
    if make == "json":
        assert ESCAPES in "".join(json.loads(said.out)["notes"])


def test_the_streams_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with printable_streams(), printable_streams():
        assert isinstance(sys.stdout, Printable) and raw(sys.stdout) is before
        print("a\x1bb", end="")
        raw(sys.stdout).write("\x1b")
    assert sys.stdout is before
    assert capsys.readouterr().out == "a\\u001bb\x1b"
