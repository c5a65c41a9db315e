"""The end of a log, step by step: what was put into a machine is read out of its log again."""

from pathlib import Path

import pytest
from made_logs import rows_of, run_arguments, simulate, write_engine_log
from msgspec.structs import replace

from evaluation.drain import drain_markdown, read_drain, step_price
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import InputError
from llmsim.lowering.adjust.calibration import calibration_of
from llmsim.validation import read_recording
from tests.validation.test_calibration import SILICON_TP4, write_calibration

BURST = (
    "synthetic:n=70,arrivals=burst:size=70:every_s=1,input=lognormal:300,output=lognormal:90,seed=5"
)


@pytest.mark.parametrize("factor", [1.0, 1.06])
def test_a_slower_machine_shows_at_every_batch_size(factor: float, tmp_path: Path) -> None:
    calibration = write_calibration(tmp_path / "machine.json", time_factor=factor)
    simulate("--calibration", calibration, "--output", tmp_path / "real.csv", dataset=BURST)
    real = read_recording(write_engine_log(rows_of(tmp_path / "real.csv"), tmp_path / "log.jsonl"))
    options = checked_options(run_arguments(dataset=BURST))
    price = step_price(options)
    drain = read_drain(real, price)
    assert drain.ties > 20 and drain.ties_held == drain.ties
    assert {len(gap.contexts) > 40 for gap in drain.gaps} == {True, False}
    for gap in drain.gaps:
        assert gap.us / gap.steps / price(gap.contexts) == pytest.approx(factor, rel=5e-3)
    slower = replace(options, calibration=calibration_of("H100", "x", {"time_factor": factor}))
    drains = {"as it is": (drain, price), "calibrated": (drain, step_price(slower))}
    cells = next(
        line.split(" | ")
        for line in drain_markdown(drains).splitlines()
        if line.startswith("| 17 to 32")
    )
    assert float(cells[4]) == pytest.approx(100 / factor - 100, abs=0.5)
    assert float(cells[6].rstrip(" |")) == pytest.approx(0, abs=0.5)


def test_deployments_whose_steps_cannot_be_priced_alone_are_refused() -> None:
    roofline = [*SILICON_TP4[:-1], "roofline"]
    with pytest.raises(InputError, match="one instance"):
        step_price(checked_options(roofline))
