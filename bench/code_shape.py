"""`python -m bench.code_shape [ROOT ...]`: the shape of the source tree in figures, for Python and
C++.

A line per root and language: files, lines, functions; the median, the ninth decile and the maximum
of lines in a function, and how many are over 60; statement and expression branches per line of
function; lines over 100 characters; the fullest folders. The figures are a thermometer: where a
figure and a reader disagree, the reader is right.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOTS = ("llmsim", "astra-sim", "evaluation", "tests")
SKIPPED = {".git", ".venv", "build", "__pycache__", "outputs"}
LONG_FUNCTION_LINES = 60
WIDE_CHARACTERS = 100
FULLEST_FOLDERS = 6
STATEMENTS = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case)
CPP_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',  # noqa: E501
    re.S | re.M,
)
"""Comments, texts and preprocessor lines, in which braces and words mean nothing."""
NO_FUNCTION = re.compile(
    r"^\s*(?:if|for|while|switch|catch|else|do|namespace|class|struct|enum|union|extern)\b"
)


@dataclass
class Shape:
    """What is counted in the sources of one language below one root."""

    files: int = 0
    lines: int = 0
    wide_lines: int = 0
    function_lines: list[int] = field(default_factory=list)
    statement_branches: int = 0
    expression_branches: int = 0

    def row(self, name: str, language: str) -> str:
        """The figures in one line."""
        total = max(1, sum(self.function_lines))
        lengths = sorted(self.function_lines) or [0]
        ninth = lengths[round(0.9 * (len(lengths) - 1))]
        long_functions = sum(length > LONG_FUNCTION_LINES for length in lengths)
        functions = (
            f"{len(self.function_lines)} functions "
            f"{statistics.median(lengths):g}/{ninth}/{lengths[-1]}"
        )
        branches = (
            f"branches/line {self.statement_branches / total:.3f} + "
            f"{self.expression_branches / total:.3f}"
        )
        wide_percent = 100 * self.wide_lines / max(1, self.lines)
        return (
            f"{name:12s} {language:3s} {self.files} files {self.lines} lines {functions}, "
            f"{long_functions} over "
            f"{LONG_FUNCTION_LINES}; {branches}; lines over {WIDE_CHARACTERS}: {wide_percent:.1f} %"
        )


def python_shape(paths: Sequence[Path]) -> Shape:
    """Counts Python sources by their syntax trees."""
    shape = Shape(len(paths))
    for path in paths:
        text = path.read_text(encoding="utf-8")
        _count_lines(shape, text)
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            shape.function_lines.append((function.end_lineno or 0) - function.lineno + 1)
            for node in ast.walk(function):
                shape.statement_branches += isinstance(node, STATEMENTS)
                shape.expression_branches += _expression_branches(node)
    return shape


def _expression_branches(node: ast.AST) -> int:
    if isinstance(node, ast.IfExp):
        return 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0


def cpp_shape(paths: Sequence[Path]) -> Shape:
    """Counts C++ sources by their braces: a function is an outermost block behind a closing
    parenthesis.
    """
    shape = Shape(len(paths))
    for path in paths:
        text = path.read_text(encoding="utf-8")
        _count_lines(shape, text)
        code = CPP_TOKEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        for begin, end in _cpp_functions(code):
            body = code[begin:end]
            shape.function_lines.append(body.count("\n") + 1)
            shape.statement_branches += len(re.findall(r"\b(?:if|for|while|case|catch)\b", body))
            shape.expression_branches += len(re.findall(r"&&|\|\||\?", body))
    return shape


def _cpp_functions(code: str) -> Iterator[tuple[int, int]]:
    """Where functions begin and end: from the line of the name to the closing brace."""
    start, depth, opened = 0, 0, -1
    for match in re.finditer(r"[{};]", code):
        position, character = match.start(), match[0]
        if character == "{":
            head = code[start:position]
            is_function = (
                ")" in head and not NO_FUNCTION.match(head) and not re.search(r"=\s*$", head)
            )
            if opened < 0 and is_function:
                opened, first = depth, start + len(head) - len(head.lstrip())
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == opened:
                yield first, position
                opened = -1
        if opened < 0:
            start = position + 1


def _count_lines(shape: Shape, text: str) -> None:
    rows = text.splitlines()
    shape.lines += len(rows)
    shape.wide_lines += sum(len(row) > WIDE_CHARACTERS for row in rows)


def sources(root: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The sources below a folder, without what is built or downloaded."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix in suffixes and not SKIPPED & set(path.parts)
    )


def main(arguments: Sequence[str]) -> None:
    """Prints the figures of each root."""
    for root in filter(Path.is_dir, map(Path, arguments or ROOTS)):
        python, cpp = sources(root, (".py",)), sources(root, (".cpp", ".h"))
        if python:
            print(python_shape(python).row(str(root), "py"))
        if cpp:
            print(cpp_shape(cpp).row(str(root), "c++"))
        counts = Counter(path.parent for path in python + cpp)
        fullest = ", ".join(
            f"{folder} {count}" for folder, count in counts.most_common(FULLEST_FOLDERS)
        )
        print(f"{'':12s} fullest folders: {fullest}")


if __name__ == "__main__":
    main(sys.argv[1:])
