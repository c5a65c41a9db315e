"""What is drawn as a mutant and what is not, in both languages; the same seed draws the same."""

import itertools

import pytest
from package import package_sources

from mutation.cpp_operators import CppMutants
from mutation.drawing import at_line, drawn, equivalents, mutants_of, sources
from mutation.mutant import Mutant
from mutation.python_operators import PythonMutants, functions_of, same_bytecode
from mutation.workplace import ROOT

CPP = """\
#include <vector>
// a < b, true
namespace x {
std::vector<std::int64_t> times(const Foo* foo, Ps at) {
  if (at >= 3 && foo->ready(at)) foo->stop(/* 1 */);
  std::int64_t sum = 0;
  sum += std::max<Ps>(at, -at) * 2;
  for (const auto& each : foo->all) ++sum;
  if (sum < 0) throw std::invalid_argument("1 < 2" + std::to_string(sum - 1));
  return foo->list(sum);
}
}  // namespace x
"""

PYTHON = '''\
"""Is 1 < 2?"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
    size: int = 3

    def __repr__(self) -> str:
        return "Thing" if self.size > 0 else "none"

    def larger(self, other: "Thing | None") -> bool:
        """More than 0."""
        if other is None:
            raise ValueError(f"{self.size + 1} is {True}")
        self.notes.append(f"{self.size - 1}")
        self.seen = max(self.size, other.size)
        for each, _ in zip([1], [2], strict=True):
            self.seen += each
        return self.seen - 2 < self.size and not other.empty
'''


def changes(mutants: list[Mutant], source: str) -> set[tuple[str, str]]:
    return {(source[mutant.start : mutant.end], mutant.replacement) for mutant in mutants}


def test_of_cpp_all_kinds_are_found_and_nothing_else() -> None:
    """Neither the template's brackets nor the pointer, comment, include or message."""
    condition = "at >= 3 && foo->ready(at)"
    assert changes(CppMutants("x.cpp", CPP).all(), CPP) == {
        (">=", ">"),
        (">=", "<"),
        ("&&", "||"),
        ("3", "4"),
        (condition, f"!({condition})"),
        ("max", "min"),
        ("foo->stop(/* 1 */);", ";"),
        ("0", "1"),
        ("+=", "-="),
        ("*", "/"),
        ("2", "3"),
        ("++", "--"),
        ("sum += std::max<Ps>(at, -at) * 2;", ";"),
        ("++sum;", ";"),
        ("foo->list(sum)", "{}"),
    }


def test_of_python_all_kinds_are_found_and_nothing_else() -> None:
    """Neither docstrings, messages, annotations, decorators, errors, `strict` nor what is printed
    of an object.
    """
    whole = "self.seen - 2 < self.size and not other.empty"
    assert changes(PythonMutants("x.py", PYTHON).all(), PYTHON) == {
        ("3", "4"),
        ("other is None", "(not (other is None))"),
        ("other is None", "(other is not None)"),
        ("self.seen = max(self.size, other.size)", "pass"),
        ("max", "min"),
        ("1", "2"),
        ("2", "3"),
        ("self.seen += each", "pass"),
        ("self.seen += each", "self.seen -= each"),
        (whole, "False"),
        (whole, "(self.seen - 2 < self.size or not other.empty)"),
        ("self.seen - 2", "(self.seen + 2)"),
        ("self.seen - 2 < self.size", "(self.seen - 2 <= self.size)"),
        ("not other.empty", "(other.empty)"),
        ("self.seen - 2 < self.size", "(self.seen - 2 >= self.size)"),
    }


@pytest.mark.parametrize(
    "path",
    [
        "llmsim/lowering/network/all_to_all.py",
        "llmsim/costs/sources/bundle/grid_completion.py",
        "llmsim/results/devices/utilisation.py",
    ],
)
def test_every_mutant_of_python_is_a_program(path: str) -> None:
    package_sources()
    source = (ROOT / path).read_text(encoding="utf-8")
    found = mutants_of(path)
    assert len(found) > 50
    for mutant in found[::10]:
        assert not same_bytecode(source, mutant.applied(source)), mutant


def test_lines_and_comments_make_no_other_bytecode() -> None:
    assert same_bytecode("x = 1\ny = x < 2\n", "# note\nx = 1\n\n\ny = (x < 2)\n")
    assert not same_bytecode("x = 1", "x = True")


def test_a_changed_text_with_other_letters_is_changed_where_it_stands() -> None:
    """Positions of `ast` count bytes, those of texts characters."""
    source = "x = 'äöü€', 1 < 2\n"
    assert {mutant.applied(source) for mutant in PythonMutants("x.py", source).all()} >= {
        "x = 'äöü€', (1 <= 2)\n"
    }


def test_the_seed_alone_decides() -> None:
    package_sources()
    roots = ["llmsim/results", "llmsim/native/router"]
    first = list(itertools.islice(drawn(roots, 7), 200))
    assert first == list(itertools.islice(drawn(reversed(roots), 7), 200))  # type: ignore[arg-type]
    assert first != list(itertools.islice(drawn(roots, 8), 200))
    assert {mutant.path.rpartition(".")[2] for mutant in first} == {"cpp", "h", "py"}


def test_wrong_places_are_one_sentence() -> None:
    for wrong in ("llmsim/native/results/latency_breakdown.cpp", "nothing.cpp:3", "llmsim:1"):
        with pytest.raises(ValueError, match="is no line of a file"):
            at_line(wrong)
    with pytest.raises(ValueError, match="holds no source"):
        sources(["docs/reference"])


def test_what_is_called_equivalent_is_a_mutant_of_the_present_sources() -> None:
    """Otherwise its line has changed, and the reason no longer holds for sure."""
    package_sources()
    for each in equivalents():
        source = (ROOT / each.path).read_text(encoding="utf-8")
        known = {mutant.changed_lines(source) for mutant in mutants_of(each.path)}
        assert (each.before, each.after) in known, each
        assert len(each.reason.split()) > 4, each


def test_functions_are_known_by_their_first_line() -> None:
    assert list(
        functions_of("@first\ndef f():\n    def g():\n        pass\n    return lambda: 1\n")
    ) == [
        (1, 5),
        (3, 4),
        (5, 5),
    ]
