"""The words that a server for unknown clients speaks: token i is the word "t<i>"."""

import json
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
WORDS = 32_000
"""Words of the vocabulary; text of other words counts as well, each as the unknown word."""
_UNKNOWN = "t0"
_STEP = 7919
_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_tokenizer(folder: Path) -> None:
    """A tokenizer that needs no network; its text comes back as the same tokens."""
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{number}": number for number in range(WORDS)},
            "unk_token": _UNKNOWN,
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # The unknown word is no special token: load generators leave those out of what they send.
        "model_max_length": 1 << 30,
        "chat_template": _TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    for name, content in zip(TOKENIZER_FILES, (tokenizer, config), strict=True):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


class EndlessAnswers:
    """Samples words until the engine has what it wants, for requests that come one by one."""

    def __init__(self, speculation: Any = None) -> None:
        """`speculation`: the native `SpeculationConfig`, which says which drafts hold."""
        self._speculation = speculation
        self._prompt: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self._sampled: dict[int, int] = {}

    def joins(self, row: int, prompt_tokens: int) -> None:
        """A request is there."""
        self._prompt[row] = self._known[row] = prompt_tokens
        self._sampled[row] = 0

    def starts(self, row: int, computed: int) -> None:
        """It runs for the first time, or again."""
        self._computed[row] = computed

    def forgets(self, row: int, known: int) -> None:
        """It holds so many tokens, and what was sampled behind them has been dropped."""
        self._known[row] = known
        self._sampled[row] = known - self._prompt[row]

    def sample(self, row: int, scheduled: int, drafts: int, *, holds: bool) -> list[int]:
        """A token and the drafts that hold, from the end of the prompt on; none is accepted unless
        the request `holds` drafts.
        """
        first, held = self._sampled[row], 0
        if drafts and holds:
            held = self._speculation.acceptance.accepted(row, first, drafts)
        self._computed[row] += scheduled - (drafts - held)
        if self._computed[row] < self._known[row]:
            return []
        self._sampled[row] += 1 + held
        self._known[row] += 1 + held
        places = range(first, first + 1 + held)
        return [1 + (row * 31 + place * _STEP) % (WORDS - 1) for place in places]

    def sampled(self, row: int) -> int:
        """Words that a request has had."""
        return self._sampled[row]
