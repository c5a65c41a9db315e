"""When SGLang's scheduler hears that the client of a stream has gone."""

import pytest
from emulation.test_emulation import CLUSTER

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.core import PS_PER_S, Status
from llmsim.simulation.run import simulate


@pytest.mark.parametrize(("scheduler", "waits_s"), [("sglang", 2), ("vllm_v1", 0)])
def test_its_api_server_waits_two_seconds(scheduler: str, waits_s: int) -> None:
    """The request runs on meanwhile."""
    one = "synthetic:n=1,rate=1,input=fixed:100,output=fixed:3000"
    words = ["--cluster-config", str(CLUSTER), "--dataset", one, "--scheduler", scheduler]
    prepared = prepare(checked_options([*words, "--request-timeout", "1"]))
    requests = simulate(prepared.lowered, prepared.workload, prepared.simulation).requests
    assert requests.status[0] == Status.CANCELLED
    waited_s = (int(requests.cancelled_ps[0]) - int(requests.arrival_ps[0])) / PS_PER_S
    assert waited_s == pytest.approx(1 + waits_s, abs=0.1)
