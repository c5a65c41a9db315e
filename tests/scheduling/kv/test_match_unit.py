"""Hits inside of a block (`prefix_match_unit`), by hand on a model that keeps states; against vLLM
itself in tests/conformance.
"""

from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.config.errors import InputError

CLUSTERS = Path(__file__).resolve().parents[3] / "cluster_config"
HYBRID, PLAIN = CLUSTERS / "h100_nemotron3_nano_tp2.json", CLUSTERS / "h100_llama31_8b.json"
BLOCK = 2096
"""Tokens in a block that holds a state of the hybrid model."""


def hits(prompts: list[list[int]], cluster: Path = HYBRID, **options: Any) -> list[int]:
    """Tokens of each prompt that the cache had, of prompts a second apart with one token each."""
    requests = [
        llmsim.Request(float(at), len(prompt), 1, input_tok_ids=prompt)
        for at, prompt in enumerate(prompts)
    ]
    given = {"engine_profile": "vllm-0.33", "cost_source": "roofline", **options}
    found = llmsim.run(str(cluster), requests, **given)
    return [int(tokens) for tokens in found.requests["cached_tokens"]]


def prompt(*parts: tuple[int, int]) -> list[int]:
    """Parts of (first token id, length) each."""
    return [first + offset for first, length in parts for offset in range(length)]


@pytest.mark.parametrize(("unit", "found"), [(None, 0), (16, 304), (8, 304), (1, 308)])
def test_a_prompt_is_found_up_to_its_last_piece(unit: int | None, found: int) -> None:
    """Of 309 tokens the last one is computed again, and states are kept at the last whole piece."""
    assert hits([prompt((0, 309))] * 2, prefix_match_unit=unit) == [0, found]


def test_states_are_found_where_a_prompt_ended_and_nowhere_else() -> None:
    """The second prompt goes on behind the first; the third leaves it earlier, where no state is
    kept; the fourth repeats the second.
    """
    first, longer = prompt((0, 320)), prompt((0, 320), (5000, 100))
    other = prompt((0, 160), (9000, 100))
    found = hits([first, longer, other, longer], prefix_match_unit=16)
    assert found == [0, 304, 0, 416]


def test_whole_blocks_are_still_found() -> None:
    long = prompt((0, 2 * BLOCK + 50))
    branch = prompt((0, 2 * BLOCK), (90_000, 200))
    assert hits([long, branch], prefix_match_unit=16) == [0, 2 * BLOCK]
    assert hits([long, long], prefix_match_unit=16) == [0, 2 * BLOCK + 48]


@pytest.mark.parametrize(
    ("cluster", "options", "sentence"),
    [
        (HYBRID, {"prefix_match_unit": 7}, "is 7 .* blocks of 2096 tokens are no mult"),
        (PLAIN, {"prefix_match_unit": 8}, "is 8 .* hits end with blocks of 16 tokens"),
        (
            HYBRID,
            {"prefix_match_unit": 16, "engine_profile": "vllm-0.28"},
            r"prefix_match_unit is no option of vllm-0\.28",
        ),
        (
            HYBRID,
            {"prefix_match_unit": 16, "scheduler": "orca"},
            "prefix_match_unit is an option of the scheduler vllm_v1",
        ),
    ],
)
def test_what_is_refused(cluster: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        hits([prompt((0, 20))], cluster, **options)
