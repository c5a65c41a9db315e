"""Our decode side against the installed vLLM's scheduler with an asynchronously loading connector
(skipped without).
"""

import pytest
from conformance.handover_replay import Replay, random_case

from llmsim.scheduling.conformance.vllm_live import installed_version


@pytest.mark.skipif(
    not str(installed_version()).startswith("0.24"), reason="vLLM 0.24 is not installed"
)
@pytest.mark.parametrize("seed", [*range(12), 100, 101, 102, 5038])
def test_decode_side_is_identical(seed: int) -> None:
    """Scheduled tokens, times, preemptions and free blocks of every step, under pressure, by both
    orders.
    """
    case = random_case(seed)
    replay = Replay(case)
    assert replay.run() is None
    assert not replay.stood_still or case.cluster.order == "PRIORITY"
