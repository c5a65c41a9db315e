"""How a replica of a model is split over ranks."""

from typing import Literal

from msgspec import Struct

Domain = Literal["", "attention", "ffn"]
"""The part of every layer that a rank runs: "": all of it."""
Among = Literal["tp", "dcp", "pcp", "members", "everyone", "stages"]
"""The ranks of a collective: tensor-parallel, decode or prefill context-parallel, the same rank of
every data-parallel member, all ranks of all of them, or two pipeline stages.
"""


class Layout(Struct, frozen=True):
    """How one model replica is split: `tp` ranks, of which the experts are spread over `ep` (1:
    every rank has all).

    With `dp` > 1 that many replicas share one set of experts: `ep` counts over all of their tp x dp
    ranks, and tokens travel to the experts and back. `stage_layers` are the layers of each pipeline
    stage (empty: one stage), `stage` the one whose share is meant.
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    stage_layers: tuple[int, ...] = ()
    stage: int = 0
    redundant_experts: int = 0
    """Second copies of experts, spread over the ranks like the experts themselves."""
    sequence_parallel: bool = False
    """Norms see 1/tp of the tokens, between a reduce-scatter and an all-gather (vLLM's
    enable_sequence_parallelism).
    """
    prefill_context: int = 1
    """Ranks that share the tokens of prompts; a stage has tp x prefill_context devices."""
    shared_ffn: bool = False
    """Dense FFNs and shared experts are cut over the ranks of all `dp` replicas, too."""
    exchange: str = "allgather_reducescatter"
    """vLLM's all2all_backend (exchange.py)."""
    decode_context: int = 1
    """Of the tp ranks, those that share the KV cache of one head by tokens (vLLM's decode context
    parallelism).
    """
    domain: Domain = ""
    """Under attention-FFN disaggregation: what the rank runs. Embedding and head are the
    attention's.
    """
    routed_rows: bool = False
    """Under attention-FFN disaggregation: the attention's ranks route, and each row travels to the
    ranks of its experts; else rows travel once, and the FFN's ranks exchange them.
    """

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return max(1, len(self.stage_layers))

    @property
    def context_ranks(self) -> int:
        """Ranks over which the tokens of a sequence's KV cache are dealt."""
        return self.prefill_context * self.decode_context

    @property
    def stage_ranks(self) -> int:
        """Devices of one pipeline stage of one replica."""
        return self.tp * self.prefill_context

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that share the experts: each holds 1 / ep of them, cut in expert_ranks
        / ep.
        """
        return self.stage_ranks * self.dp

    @property
    def ffn_ranks(self) -> int:
        """Ranks over which a dense FFN is cut."""
        return self.tp * self.dp if self.shared_ffn else self.tp

    @property
    def own_members(self) -> int:
        """Of the `dp` replicas, those that a group of the layout is: an FFN group beside attention
        groups is all of them, as columns of its ranks.
        """
        return self.dp if self.domain == "ffn" else 1

    @property
    def shares_tokens_out(self) -> bool:
        """Whether a replica's tensor-parallel ranks send a part of its tokens each to
        the experts.
        """
        return (
            self.dp > 1 and self.tp > 1 and self.ep == self.expert_ranks and self.exchange != "pplx"
        )

    def ranks(self, among: Among) -> int:
        """How many ranks a collective is among."""
        return {
            "tp": self.tp,
            "dcp": self.decode_context,
            "pcp": self.prefill_context,
            "members": self.dp,
            "everyone": self.stage_ranks * self.dp,
            "stages": 2,
        }[among]

    def stride(self, among: Among) -> int:
        """How far apart these ranks are in a stage, whose tensor-parallel ranks come first."""
        return self.tp if among == "pcp" else 1
