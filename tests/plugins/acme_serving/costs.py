"""A cost source and an expert router."""

import numpy as np
from llmsim.costs.expert_routing import ExpertRouter  # its name before folders

from llmsim.core import Provenance
from llmsim.costs.source import AttentionCost, CostRequest, Curve
from llmsim.model import Operator


class StreamedWeights:
    """Matrices at the data sheet's bandwidth; everything else is left to the next source."""

    def __init__(self, request: CostRequest) -> None:
        assert request.hardware is not None, "needs a data sheet"
        self.bytes_per_s = request.hardware.memory_bandwidth_bytes_per_s

    def operator(self, op: Operator, last: int) -> Curve | None:
        if op.kind != "gemm":
            return None
        moved_bytes = op.weight_bytes + np.arange(last + 1) * (
            op.read_bytes_per_token + op.write_bytes_per_token
        )
        ps = np.ceil(moved_bytes / self.bytes_per_s * 1e12).astype(np.int64)
        ps[0] = 0
        return Curve(
            ps, np.full(last + 1, Provenance.ANALYTIC, np.uint8), "acme_serving.StreamedWeights"
        )

    def attention(self, op: Operator) -> AttentionCost | None:
        return None


class EvenExperts(ExpertRouter):
    """The twin of `RAND`."""

    def popularity(self, layers: int, experts: int, seed: int) -> np.ndarray:
        return np.ones((layers, experts))
