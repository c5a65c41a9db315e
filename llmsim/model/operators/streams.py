"""The operators of hyper-connections: several residual streams in place of one (arXiv 2409.19606),
as DeepSeek-V4 has them, with mixing weights that Sinkhorn's iterations make doubly stochastic.

With n streams of h elements, per token and half layer: in front of the block a norm of all streams,
a projection to n + n + n^2 weights and their sum to one hidden state; behind it that state's share
for each stream, and the streams mixed. Shapes: vLLM's mhc_pre and mhc_post.
"""

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from llmsim.model.operator import Operator, StreamMix

if TYPE_CHECKING:
    from llmsim.model.operators.factory import OperatorFactory

WIDE_BYTES = 4
"""The mixing weights are kept and computed in fp32."""
SIDES = 2
"""Half layers: attention and FFN."""


class HyperConnections(Struct, frozen=True):
    """Residual streams of a model."""

    streams: int
    mixed: bool = True
    """Streams are mixed behind each half layer; else each keeps its own (Hunyuan 4)."""
    head: bool = True
    """Weights of their own collapse the streams behind the last layer; else their mean does."""

    @property
    def numbers(self) -> int:
        """Weights that a token brings: of the sum, of the block's output, and of the mixture."""
        return self.streams * (2 + self.streams * self.mixed)

    def weights(self, hidden: int) -> int:
        """Of one half layer: projection, bias and the scales of the kinds of weights."""
        return self.numbers * (self.streams * hidden + 1) + 2 + self.mixed

    def head_weights(self, hidden: int) -> int:
        """Of the sum behind the last layer."""
        return (self.streams * self.streams * hidden + self.streams + 1) * self.head

    def parameters(self, hidden: int, layers: int) -> int:
        """Of the whole model, all fp32."""
        return SIDES * layers * self.weights(hidden) + self.head_weights(hidden)


def streams_in(make: "OperatorFactory", repeat: int) -> list[Operator]:
    """In front of a half layer: the weights, and the sum of the streams; nothing without them."""
    hyper, hidden = make.model.hyper, make.model.hidden_size
    if hyper is None or not repeat:
        return []
    n = hyper.streams
    return [_mix(make, "in", repeat, hyper.weights(hidden), (n * hidden, hidden))]


def streams_out(make: "OperatorFactory", repeat: int) -> list[Operator]:
    """Behind a half layer: its output's share for each stream, and the streams mixed."""
    hyper, hidden = make.model.hyper, make.model.hidden_size
    if hyper is None or not repeat:
        return []
    n = hyper.streams
    return [_mix(make, "out", repeat, 0, ((n + 1) * hidden, n * hidden))]


def streams_begin(make: "OperatorFactory") -> list[Operator]:
    """The embedding, written into every stream."""
    hyper, hidden = make.model.hyper, make.model.hidden_size
    if hyper is None:
        return []
    copy = make.elementwise(
        "streams_begin", 1, reads=hidden, writes=hyper.streams * hidden, flops=0
    )
    return [replace(copy, part="prologue")]


def streams_end(make: "OperatorFactory") -> list[Operator]:
    """The streams, summed up behind the last layer."""
    hyper, hidden = make.model.hyper, make.model.hidden_size
    if hyper is None:
        return []
    n = hyper.streams
    last = _mix(make, "in", 1, hyper.head_weights(hidden), (n * hidden, hidden))
    return [
        replace(last, name="streams_end", part="head", flops_per_token=2 * n * (n + 1) * hidden)
    ]


def _mix(
    make: "OperatorFactory", side: str, repeat: int, weights: int, moved: tuple[int, int]
) -> StreamMix:
    hyper, hidden, size = make.model.hyper, make.model.hidden_size, make.wide_size
    assert hyper is not None, "the callers looked"
    n = hyper.streams
    # In: norm, projection and weighted sum; out: each stream from all of them and the block.
    sources = n + 1 if hyper.mixed else 2
    flops = (5 + 2 * hyper.numbers) * n * hidden if side == "in" else 2 * n * sources * hidden
    return StreamMix(
        name=f"streams_{side}",
        repeat=repeat,
        hidden=hidden,
        side="in" if side == "in" else "out",
        streams=n,
        mixed=hyper.mixed,
        reduces=side == "in",
        weight_dtype="fp32" if weights else "",
        weight_bytes=weights * WIDE_BYTES,
        read_bytes_per_token=moved[0] * size,
        write_bytes_per_token=moved[1] * size,
        flops_per_token=flops,
    )
