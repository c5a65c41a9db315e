"""What several tests of attention and FFN instances need."""

import pytest

from llmsim import _native
from llmsim.lowering.afd import domain, ports


@pytest.fixture
def no_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes time between attention and FFN."""
    nothing = _native.PortBytes(_native.Feature.TOKENS, 0)
    hop = _native.M2nHop(nothing, nothing, nothing, nothing)
    monkeypatch.setattr(domain, "hops_of", lambda *_: [hop, hop])
    monkeypatch.setattr(domain, "way_between", lambda *_: ports.Way(1, 1, 0))
