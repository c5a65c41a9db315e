"""Prompts as token ids, and answers as text of exactly the asked number of tokens."""

import random
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from llmsim.config.errors import InputError

WORDS = (
    "the", "load", "is", "low", "and", "so", "each", "token", "came", "on", "time", "with", "a",
    "short", "queue", "in", "front", "of", "it", "then", "all", "went", "well", "as", "step",
    "by", "we", "saw", "no", "stall", "here", "but", "cache", "hits", "grew", "when", "new",
    "work", "was", "like", "old", "long", "run", "ends", "soon", "more", "will", "go", "to",
    "next", "node", "that", "has", "room", "for", "both", "jobs", "now", "fast", "link", "can",
    "take", "half", "yet",
)  # fmt: skip
"""What answers are made of: 64 words of at most five letters."""

_PIECE = re.compile(r"\s?[^\s]{1,5}|\s", re.UNICODE)
MAX_TOKEN_ID = (1 << 31) - 1
"""The largest that a trace takes."""
_MOST_NAMED = 1 << 20


class Tokenizer(Protocol):
    """Token ids of a text, and the text of token ids."""

    name: str

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...


class PieceTokenizer:
    """A token is at most five characters and the space before them: about four thirds of a word.

    It stands for the model's own tokenizer where none is given.
    """

    name = "pieces of five characters"

    def __init__(self) -> None:
        self._text_of: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        """The id of a piece is 31 bits of its CRC-32; `decode` knows what was encoded lately."""
        ids = []
        for piece in _PIECE.findall(text):
            number = zlib.crc32(piece.encode("utf-8", "surrogatepass")) & MAX_TOKEN_ID
            ids.append(number)
            if len(self._text_of) < _MOST_NAMED:
                self._text_of[number] = piece
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """An id that nobody has encoded is written as a number."""
        return "".join(self._text_of.get(one, f" {one}") for one in ids)


class FileTokenizer:
    """A `tokenizer.json` of Hugging Face, read by the package tokenizers."""

    def __init__(self, path: Path) -> None:
        """Raises InputError where the file cannot be read, or the package is missing."""
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError:
            raise InputError(
                "--tokenizer needs the package tokenizers; pip install tokenizers"
            ) from None
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise InputError(f"--tokenizer {path}: there is no file {file}")
        try:
            self._fast = Fast.from_file(str(file))
        except Exception as error:  # the package raises Exception itself
            raise InputError(f"--tokenizer {file} is no tokenizer.json: {error}") from None
        self.name = str(file)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; an id that the file does not have has no text."""
        text: str = self._fast.decode(list(ids), skip_special_tokens=False)
        return text


def tokenizer_of(path: Path | None) -> Tokenizer:
    """The tokenizer of a file or folder; without one, pieces of five characters."""
    return PieceTokenizer() if path is None else FileTokenizer(path)


class Answers:
    """Answers that depend on the prompt and the seed alone: one word is one token."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        """Words that the tokenizer cuts into several tokens count as their first one."""
        self.words = tuple(f" {word}" for word in WORDS)
        self._ids = tuple((tokenizer.encode(word) or [0])[0] for word in self.words)
        self._seed = seed

    def draw(self, prompt: Sequence[int], tokens: int, sample: int = 0) -> list[int]:
        """Places in `words`, as many as tokens; `sample` tells answers to one prompt apart."""
        key = repr((self._seed, sample, len(prompt), prompt[-64:]))
        draw = random.Random(zlib.crc32(key.encode()))
        return draw.choices(range(len(self.words)), k=tokens)

    def ids(self, places: Sequence[int]) -> list[int]:
        """The token ids of an answer."""
        return [self._ids[place] for place in places]

    def text(self, places: Sequence[int]) -> str:
        """The text of an answer."""
        return "".join(self.words[place] for place in places)
