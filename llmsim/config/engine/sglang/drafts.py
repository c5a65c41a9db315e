"""Drafts as SGLang's options describe them: trees, with numbers that stay the same."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from llmsim.config.engine.speculative import Speculation
from llmsim.config.errors import InputError

_TOPK, _TOKENS = "sglang_eagle_topk", "sglang_draft_tokens"
_SECTION = "speculative_config"


def with_branches(
    speculation: Speculation,
    values: Mapping[str, Any],
    positions: Mapping[str, Callable[[str], str]],
) -> Speculation:
    """The drafts with SGLang's branches and tokens of a verification.

    Raises InputError for what SGLang has not: numbers by batch size, drafts in one pass, proposals
    that find nothing; and for branches without their tokens, or tokens without branches.
    """
    for wrong, what in (
        (speculation.tokens_by_sequences, "num_speculative_tokens_per_batch_size"),
        (speculation.parallel, "parallel_drafting"),
        (speculation.proposal_rate < 1, "proposal_rate"),
    ):
        if wrong:
            raise InputError(
                f"{positions[_SECTION](_SECTION)} has {what}, which SGLang's drafts do not have; "
                "remove it"
            )
    own = dict(values["scheduler_parameters"])
    branches, tokens = own[_TOPK], own[_TOKENS]
    if branches == 1 and tokens not in (0, speculation.verified):
        raise InputError(
            f"{positions[_TOKENS](_TOKENS)} is {tokens}, but drafts without branches are verified "
            f"in {speculation.verified} tokens; remove it, or raise {_TOPK}"
        )
    if branches > 1 and tokens <= speculation.tokens:
        raise InputError(
            f"{positions[_TOPK](_TOPK)} is {branches}, and {_TOKENS} is {tokens}; give more tokens "
            f"than the {speculation.tokens} of one branch"
        )
    return replace(speculation, branches=branches, tree_tokens=tokens if branches > 1 else None)
