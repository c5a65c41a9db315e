"""Finds what can be mutated in a C++ source.

The sources are formatted by clang-format: a binary operator stands between spaces, and a template's
angle bracket, a pointer or a sign does not. That tells them apart without a parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mutation.mutant import Mutant

TOKEN = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*|\s+)
    |(?P<string>R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<operator><=>|<<=|>>=|->\*|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
}
ARITHMETIC = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "%": "*",
    "+=": "-=",
    "-=": "+=",
    "*=": "/=",
    "/=": "*=",
}
LOGIC = {"&&": "||", "||": "&&"}
KEYWORDS = """
    return const constexpr static auto if else for while do switch case default using break continue
    throw try catch namespace struct class enum union template typedef public private protected
    friend static_assert assert explicit virtual inline operator delete
"""
NO_STATEMENT = frozenset(KEYWORDS.split())
"""What does not begin with one of these is a call, an assignment or a declaration."""
LABELS = frozenset(["case", "default", "public", "private", "protected"])
TRIVIAL_RETURNS = frozenset(["{}", "0", "false", "nullptr", "*this", ""])


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


def tokens_of(source: str) -> list[Token]:
    """Tokens without comments, blanks and preprocessor lines."""
    found = []
    for match in TOKEN.finditer(source):
        kind = match.lastgroup or ""
        kind = "string" if match.group("string") is not None else kind
        if kind != "skip":
            found.append(Token(kind, match.group(), match.start(), match.end()))
    return found


class CppMutants:
    """All mutants of one source, in the order of the text."""

    def __init__(self, path: str, source: str):
        self.path = path
        self.source = source
        self.tokens = tokens_of(source)
        self.in_message = self._messages()

    def all(self) -> list[Mutant]:
        found = [
            *self._of_tokens(),
            *self._of_conditions(),
            *self._of_statements(),
            *self._of_returns(),
        ]
        return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.replacement))

    def _mutant(self, start: int, end: int, replacement: str, operator: str) -> Mutant:
        line = self.source.count("\n", 0, start) + 1
        return Mutant(self.path, line, start, end, replacement, operator)

    def _messages(self) -> list[bool]:
        """Whether each token belongs to a statement that throws or that holds a text."""
        found = [False] * len(self.tokens)
        begin, texts = 0, False
        for index, token in enumerate(self.tokens):
            texts = (
                texts
                or token.kind == "string"
                or token.text in ("throw", "static_assert", "assert")
            )
            if token.text in (";", "{", "}"):
                found[begin : index + 1] = [texts] * (index + 1 - begin)
                begin, texts = index + 1, False
        return found

    def _spaced(self, token: Token) -> bool:
        before, after = (
            self.source[token.start - 1 : token.start],
            self.source[token.end : token.end + 1],
        )
        return before.isspace() and after.isspace()

    def _of_tokens(self) -> Iterator[Mutant]:
        for index, token in enumerate(self.tokens):
            if self.in_message[index]:
                continue
            for replacement, operator in self._replacements(index, token):
                yield self._mutant(token.start, token.end, replacement, operator)

    def _replacements(self, index: int, token: Token) -> Iterator[tuple[str, str]]:
        text = token.text
        before = self.tokens[index - 1].text if index else ""
        after = self.tokens[index + 1].text if index + 1 < len(self.tokens) else ""
        if token.kind == "operator" and self._spaced(token):
            if text in COMPARISONS:
                yield from ((other, "comparison") for other in COMPARISONS[text])
            elif text in ARITHMETIC:
                yield ARITHMETIC[text], "arithmetic"
            elif text in LOGIC:
                yield LOGIC[text], "logic"
        elif text in ("++", "--"):
            yield ("--" if text == "++" else "++"), "increment"
        elif text in ("min", "max") and before == "::" and after in ("(", "<"):
            yield ("max" if text == "min" else "min"), "extremum"
        elif text in ("true", "false"):
            yield ("false" if text == "true" else "true"), "truth"
        elif token.kind == "number" and re.fullmatch(r"\d+", text):
            yield str(int(text) + 1), "constant"

    def _closing(self, index: int) -> int:
        """The token that closes the bracket at `index`."""
        depth = 0
        for at in range(index, len(self.tokens)):
            depth += {"(": 1, ")": -1}.get(self.tokens[at].text, 0)
            if depth == 0:
                return at
        return len(self.tokens) - 1

    def _of_conditions(self) -> Iterator[Mutant]:
        for index, token in enumerate(self.tokens[:-1]):
            follows = self.tokens[index + 1]
            if token.text not in ("if", "while") or follows.text != "(" or self.in_message[index]:
                continue
            close = self._closing(index + 1)
            inside = self.tokens[index + 2 : close]
            if any(part.text in (";", "=", "{") for part in inside):
                continue  # it declares something
            start, end = follows.end, self.tokens[close].start
            yield self._mutant(start, end, f"!({self.source[start:end]})", "condition")

    def _statements(self) -> Iterator[tuple[int, int]]:
        """Index of the first token of each simple statement, and of its semicolon."""
        begin, depth = 0, 0
        for index, token in enumerate(self.tokens):
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth:
                continue
            is_label = token.text == ":" and self.tokens[begin].text in LABELS
            if token.text == ";":
                yield begin, index
            if (
                token.text in (";", "{", "}", "else")
                or is_label
                or (token.text == ")" and self._ends_head(index))
            ):
                begin = index + 1

    def _ends_head(self, index: int) -> bool:
        """Whether a bracket closes the head of an if, a loop or a switch."""
        depth = 0
        for at in range(index, -1, -1):
            depth += {")": 1, "(": -1}.get(self.tokens[at].text, 0)
            if depth == 0:
                return at > 0 and self.tokens[at - 1].text in ("if", "for", "while", "switch")
        return False

    def _of_statements(self) -> Iterator[Mutant]:
        for begin, end in self._statements():
            words = [token.text for token in self.tokens[begin:end]]
            if (
                begin >= end
                or self.in_message[begin]
                or words[0] in NO_STATEMENT
                or self._declares(begin)
            ):
                continue
            is_call = words[-1] == ")"
            is_assignment = any(re.fullmatch(r"[-+*/%&|^]?=", word) for word in words)
            is_step = "++" in (words[0], words[-1]) or "--" in (words[0], words[-1])
            if is_call or is_assignment or is_step:
                start, stop = self.tokens[begin].start, self.tokens[end].end
                yield self._mutant(start, stop, ";", "removed statement")

    def _declares(self, begin: int) -> bool:
        """Whether a statement begins with a type and a name, for instance
        `std::vector<Ps>& times`.
        """
        at, angles = begin, 0
        if self.tokens[begin].kind != "name":
            return False
        while at + 1 < len(self.tokens):
            token, follows = self.tokens[at], self.tokens[at + 1]
            angles += {"<": 1, ">": -1, ">>": -2}.get(token.text, 0)
            if angles == 0 and token.text != "::":
                if follows.kind == "name":
                    return True
                if follows.text not in ("::", "<", "*", "&"):
                    return False
            at += 1
        return False

    def _of_returns(self) -> Iterator[Mutant]:
        for index, token in enumerate(self.tokens[:-1]):
            if token.text != "return" or self.in_message[index]:
                continue
            end = next(at for at in range(index, len(self.tokens)) if self._ends_return(index, at))
            start, stop = self.tokens[index + 1].start, self.tokens[end].start
            if self.source[start:stop].strip() not in TRIVIAL_RETURNS:
                yield self._mutant(start, stop, "{}", "returned value")

    def _ends_return(self, index: int, at: int) -> bool:
        """Whether the token `at` ends the statement that begins at `index`: a semicolon outside of
        brackets.
        """
        if self.tokens[at].text != ";":
            return False
        inside = [token.text for token in self.tokens[index:at]]
        return inside.count("{") == inside.count("}")
