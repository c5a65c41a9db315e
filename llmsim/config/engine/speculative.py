"""`speculative_config` in vLLM's terms, and what the scheduler and the costs need of it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, Self

from msgspec import Struct
from pydantic import Field, model_validator

from llmsim.config.constraints import broken_rule
from llmsim.config.fields import Fraction01, Name, PositiveCount, Section, SharePerPosition

Method = Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"]
HIDDEN_STATE_METHODS = ("eagle", "eagle3", "mtp")
"""Their drafter reads the model's hidden states (vLLM: SpeculativeConfig.use_eagle)."""
MAX_DRAFTS = 64

Rates = Annotated[tuple[Fraction01, ...], Field(min_length=1, max_length=MAX_DRAFTS, strict=False)]
_Sizes = Annotated[
    tuple[Annotated[int, Field(ge=0, le=1 << 20)], ...],
    Field(min_length=3, max_length=3, strict=False),
]


class SpeculativeConfig(Section):
    """Speculative decoding. How many drafts hold is given, since nothing is sampled here: exactly
    one of `acceptance_rate`, `synthetic_acceptance_rates` and `synthetic_acceptance_length`.
    """

    method: Method | None = Field(
        default=None, description="Who proposes drafts; draft_model if only a model is given."
    )
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFTS)] = Field(
        description="Drafts after each step."
    )
    model: Name | None = Field(
        default=None,
        description="The draft model, or the config.json of an EAGLE or MTP head; a head without "
        "one is made like one layer of the model.",
    )
    draft_tensor_parallel_size: PositiveCount | None = Field(
        default=None,
        description="Devices that share the drafter: 1, or as many as the model's (default).",
    )
    num_nextn_predict_layers: Annotated[int, Field(ge=1, le=MAX_DRAFTS)] = Field(
        default=1,
        description="Modules of a head of the method mtp, each of which reads one token further "
        "(since vllm-0.31).",
    )
    parallel_drafting: bool = Field(default=False, description="All drafts come from one pass.")
    num_speculative_tokens_per_batch_size: (
        Annotated[tuple[_Sizes, ...], Field(min_length=1, max_length=1024, strict=False)] | None
    ) = Field(
        default=None,
        description="[first, last, drafts] by the number of sequences in a step, the first from 1.",
    )
    prompt_lookup_max: PositiveCount | None = Field(
        default=None,
        description=(
            "Of ngram; without effect, since proposal_rate says how often something is found."
        ),
    )
    prompt_lookup_min: PositiveCount | None = Field(
        default=None, description="As prompt_lookup_max."
    )
    rejection_sample_method: Literal["synthetic"] | None = Field(
        default=None, description="Drafts are always accepted synthetically here."
    )
    synthetic_acceptance_rates: Rates | None = Field(
        default=None,
        description=(
            "Chance that the first i + 1 drafts all hold, for each position i; not increasing."
        ),
    )
    synthetic_acceptance_length: Annotated[float, Field(ge=1, le=MAX_DRAFTS + 1)] | None = Field(
        default=None,
        description="Mean tokens per verification, the one that is always right included.",
    )
    acceptance_rate: SharePerPosition | None = Field(
        default=None,
        description=(
            "Chance that a draft holds if those before it do: one number, or one for each position."
        ),
    )
    proposal_rate: Fraction01 | None = Field(
        default=None,
        description="Share of steps in which ngram finds something to propose; 1 if not given.",
    )

    @property
    def resolved_method(self) -> Method:
        """As vLLM detects it."""
        return self.method or "draft_model"

    @model_validator(mode="after")
    def _method_and_model(self) -> Self:
        if self.method is None and self.model is None:
            raise broken_rule("method", "is missing; say ngram, draft_model, eagle, eagle3 or mtp")
        if self.resolved_method == "draft_model" and self.model is None:
            raise broken_rule(
                "model", 'is missing, but the method is "draft_model"; name the model that drafts'
            )
        if self.method == "ngram" and self.model is not None:
            raise broken_rule("model", "is given, but ngram has no model; remove it")
        if self.method != "mtp" and self.num_nextn_predict_layers > 1:
            raise broken_rule(
                "num_nextn_predict_layers",
                f'is {self.num_nextn_predict_layers}, but only heads of the method "mtp" have '
                "several modules; remove it",
            )
        if self.method == "ngram" and self.parallel_drafting:
            raise broken_rule("parallel_drafting", "is true, but ngram has no model; remove it")
        if self.method != "ngram":
            for name in ("proposal_rate", "prompt_lookup_max", "prompt_lookup_min"):
                if getattr(self, name) is not None:
                    raise broken_rule(name, 'is an option of the method "ngram"; remove it')
        return self

    @model_validator(mode="after")
    def _one_acceptance(self) -> Self:
        names = ("acceptance_rate", "synthetic_acceptance_rates", "synthetic_acceptance_length")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            found = "is missing" if not given else f"is given beside {given[0]}"
            raise broken_rule(
                given[1] if given else names[0], f"{found}: give exactly one of {', '.join(names)}"
            )
        drafts = self.num_speculative_tokens
        value = getattr(self, given[0])
        if (
            isinstance(value, tuple)
            and len(value) != drafts
            and (given[0], len(value)) != ("acceptance_rate", 1)
        ):
            raise broken_rule(
                given[0], f"has {len(value)} entries, but num_speculative_tokens is {drafts}"
            )
        if given[0] == "synthetic_acceptance_rates" and any(b > a for a, b in pairwise(value)):
            raise broken_rule(given[0], "increases: more drafts hold together than fewer")
        if given[0] == "synthetic_acceptance_length" and value > drafts + 1:
            raise broken_rule(
                given[0], f"is {value:g}, more than the {drafts + 1} tokens of a verification"
            )
        return self

    @model_validator(mode="after")
    def _batch_sizes_ascend(self) -> Self:
        end = 0
        for first, last, _ in self.num_speculative_tokens_per_batch_size or ():
            if first > last or first <= end or (end == 0 and first != 1):
                raise broken_rule(
                    "num_speculative_tokens_per_batch_size",
                    (
                        f"has the range {first} to {last} after {end}; ranges ascend from 1 "
                        "without overlap"
                    ),
                )
            end = last
        return self


class Speculation(Struct, frozen=True):
    """Resolved; immutable."""

    method: Method
    tokens: int
    model: str | None
    draft_tp: int | None
    """None: as the model."""
    parallel: bool
    tokens_by_sequences: tuple[int, ...]
    """Drafts after a step of n sequences, n from 0; empty: always `tokens`."""
    acceptance: tuple[float, ...]
    """Chance of each position, given that the drafts before it hold."""
    proposal_rate: float

    modules: int = 1
    """Of a head for multi-token prediction."""
    branches: int = 1
    """Tokens of each sequence in a pass of the drafter behind the first one (SGLang's
    speculative_eagle_topk)."""
    tree_tokens: int | None = None
    """Tokens of a verification that has branches; None: the drafts in a row."""

    @property
    def verified(self) -> int:
        """Tokens of a sequence in a step that verifies its drafts."""
        return 1 + self.tokens if self.tree_tokens is None else self.tree_tokens

    @property
    def prompt_lookahead(self) -> int:
        """Tokens behind a part of a prompt that the drafter reads (vLLM 0.33,
        num_prefill_lookahead_tokens).
        """
        if min(self.modules, self.tokens) > 1:
            return self.tokens
        return int(self.reads_hidden_states)

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the drafter is a head of the model rather than a model of its own."""
        return self.method in HIDDEN_STATE_METHODS

    @property
    def lookahead(self) -> int:
        """Slots that are allocated ahead (vLLM 0.24, Scheduler.__init__)."""
        return 0 if self.method == "ngram" else self.tokens

    @property
    def slots(self) -> int:
        """Tokens that drafting adds to a step's batch, for each sequence
        (max_num_new_slots_for_drafting).
        """
        return (self.tokens - 1) * self.parallel + (self.method == "draft_model")


def resolve_speculation(config: SpeculativeConfig, max_num_seqs: int) -> Speculation:
    """The file's section as the scheduler and the costs see it."""
    return Speculation(
        method=config.resolved_method,
        tokens=config.num_speculative_tokens,
        model=config.model,
        draft_tp=config.draft_tensor_parallel_size,
        parallel=config.parallel_drafting,
        tokens_by_sequences=_by_sequences(config, max_num_seqs),
        acceptance=_conditional(config),
        proposal_rate=1.0 if config.proposal_rate is None else config.proposal_rate,
        modules=config.num_nextn_predict_layers,
    )


def _conditional(config: SpeculativeConfig) -> tuple[float, ...]:
    drafts = config.num_speculative_tokens
    if config.acceptance_rate is not None:
        rates = config.acceptance_rate
        return rates if len(rates) == drafts else rates * drafts
    held: Sequence[float] | None = config.synthetic_acceptance_rates
    if held is None:
        # vLLM's SpeculativeConfig._acceptance_length_to_rates: the schedule of least variance.
        assert config.synthetic_acceptance_length is not None, "one of three is given"
        mean = config.synthetic_acceptance_length - 1
        full = int(mean)
        held = ([1.0] * full + [mean - full] + [0.0] * drafts)[:drafts]
    return tuple(
        share if i == 0 else (share / held[i - 1] if held[i - 1] > 0 else 0.0)
        for i, share in enumerate(held)
    )


def _by_sequences(config: SpeculativeConfig, max_num_seqs: int) -> tuple[int, ...]:
    """Gaps and the tail take the range before them (vLLM: build_dynamic_sd_schedule_lookup)."""
    ranges = config.num_speculative_tokens_per_batch_size
    if ranges is None:
        return ()
    most, table, index = config.num_speculative_tokens, [0], 0
    for n in range(1, max_num_seqs + 1):
        while index + 1 < len(ranges) and n >= ranges[index + 1][0]:
            index += 1
        table.append(min(most, ranges[index][2]))
    return tuple(table)
