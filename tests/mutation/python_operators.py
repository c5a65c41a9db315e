"""Finds what can be mutated in a Python source, and tells whether a mutant differs at all.

Not mutated: texts (docstrings, messages and calls that add one), what builds an error, assertions
(`strict` of `zip` is one), decorators, annotations, `__repr__` and `__str__`, and f-strings, whose
positions Python 3.11 does not know.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from mutation.mutant import Mutant

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
EXTREMA = {"min": "max", "max": "min"}
DEFAULTS = {
    "int": "0",
    "float": "0.0",
    "bool": "False",
    "str": "''",
    "list": "[]",
    "dict": "{}",
    "tuple": "()",
}
NOT_MUTATED_FUNCTIONS = frozenset(["__repr__", "__str__"])


class PythonMutants(ast.NodeVisitor):
    """All mutants of one source, in the order of the text."""

    def __init__(self, path: str, source: str):
        self.path = path
        self.source = source
        self.found: list[Mutant] = []
        self._lines = _line_starts(source)
        self._returns: list[ast.expr | None] = []

    def all(self) -> list[Mutant]:
        self.visit(ast.parse(self.source))
        return sorted(self.found, key=lambda mutant: (mutant.start, mutant.end, mutant.replacement))

    # What is not mutated.

    def visit_Raise(self, node: ast.Raise) -> None:
        return

    def visit_Assert(self, node: ast.Assert) -> None:
        return

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in NOT_MUTATED_FUNCTIONS:
            return
        self._returns.append(node.returns)
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)
        self._returns.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    # What is mutated.

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, comparison in enumerate(node.ops):
            for other in COMPARISONS[type(comparison)]:
                self._changed(
                    node, "comparison", lambda new, i=index, o=other: new.ops.__setitem__(i, o())
                )
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = ARITHMETIC.get(type(node.op))
        if other is not None and not _is_text(node.left) and not _is_text(node.right):
            self._changed(node, "arithmetic", lambda new: setattr(new, "op", other()))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        self._changed(node, "logic", lambda new: setattr(new, "op", other()))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replaced(node, f"({ast.unparse(node.operand)})", "condition")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replaced(node, str(not node.value), "truth")
        elif isinstance(node.value, int):
            self._replaced(node, str(node.value + 1), "constant")

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in EXTREMA:
            self._replaced(node.func, EXTREMA[node.func.id], "extremum")
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg != "strict":
                self.visit(keyword.value)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._negated(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negated(condition)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not any(map(_is_text, node.value.args)):
            self._replaced(node, "pass", "removed statement")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replaced(node, "pass", "removed statement")
        other = ARITHMETIC.get(type(node.op))
        if other is not None and not _is_text(node.value):
            self._changed(node, "arithmetic", lambda new: setattr(new, "op", other()))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Without the assignment to a name every reader of the name would fail, which needs no
        test.
        """
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replaced(node, "pass", "removed statement")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        returns = self._returns[-1]
        name = ast.unparse(returns).partition("[")[0] if returns is not None else ""
        default = DEFAULTS.get(name, "None")
        if ast.unparse(node.value) != default:
            self._replaced(node.value, default, "returned value")
        self.visit(node.value)

    def _negated(self, test: ast.expr) -> None:
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._replaced(test, f"(not ({ast.unparse(test)}))", "condition")

    def _changed(
        self, node: ast.expr | ast.stmt, operator: str, change: Callable[[Any], object]
    ) -> None:
        new = copy.deepcopy(node)
        change(new)
        text = ast.unparse(new)
        self._replaced(node, f"({text})" if isinstance(node, ast.expr) else text, operator)

    def _replaced(self, node: ast.expr | ast.stmt, replacement: str, operator: str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno, node.end_col_offset)
        self.found.append(Mutant(self.path, node.lineno, start, end, replacement, operator))

    def _offset(self, line: int, column: int) -> int:
        """Offset in characters of a position that `ast` gives as bytes of UTF-8."""
        start = self._lines[line - 1]
        stop = self._lines[line] if line < len(self._lines) else len(self.source)
        return start + len(self.source[start:stop].encode()[:column].decode())


def same_bytecode(before: str, after: str) -> bool:
    """Whether two sources compile to the same instructions and constants, whatever
    their lines are.
    """
    return _essence(compile(before, "x", "exec")) == _essence(compile(after, "x", "exec"))


def _essence(code: CodeType) -> tuple[Any, ...]:
    constants = [
        _essence(each) if isinstance(each, CodeType) else (type(each), each)
        for each in code.co_consts
    ]
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_exceptiontable,
    )


def _line_starts(source: str) -> list[int]:
    return [0, *(index + 1 for index, character in enumerate(source) if character == "\n")]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def functions_of(source: str) -> Iterator[tuple[int, int]]:
    """First line (decorators included) and last line of each function, outer ones before inner
    ones.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(each.lineno for each in decorators)])
            yield first, node.end_lineno or first
