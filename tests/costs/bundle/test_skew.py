"""Decode batches of unequal lengths: the extra time per token from a bundle's rows, and the mixed
kernel, by hand.
"""

from pathlib import Path

import pytest
from costs.builders import request
from msgspec.structs import replace

from llmsim.costs.source import SKEW_FRACTION_BITS
from llmsim.costs.sources.bundle.attention import skew_ps_per_token_q20
from llmsim.costs.sources.decode_skew import mixed_decode_q20
from llmsim.model import Dtypes

Row = tuple[int, int, int, float, float]


def found(tmp_path: Path, rows: list[Row], kv_heads: int, num_sms: int) -> tuple[float, str]:
    """Picoseconds per token and layer, and how they were found."""
    path = tmp_path / "skew.csv"
    lines = ["n,kv_big,kv_mean,t_mean_us,t_skew_us", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    q20, how = skew_ps_per_token_q20(path, kv_heads, num_sms)
    return q20 / (1 << SKEW_FRACTION_BITS), how


def row(n: int, us_per_token: float, tokens: int = 1000) -> Row:
    """A batch whose longest sequence is `tokens` longer than the mean; its three iterations take so
    much longer.
    """
    return (n, 2000 + tokens, 2000, 50.0, 50.0 + 3 * us_per_token * tokens)


def test_the_median_of_the_unsplit_rows(tmp_path: Path) -> None:
    """On 10 SMs, 4 heads of 4 sequences make the 16 blocks above which nothing is split; fewer do
    not count.
    """
    rows = [row(3, 9.0), row(4, 0.001), row(8, 0.002), row(16, 0.004)]
    ps, how = found(tmp_path, rows, kv_heads=4, num_sms=10)
    assert (
        ps == pytest.approx(2000) and how == "median of 3 rows above the split threshold of 10 SMs"
    )


def test_a_sequence_alone_and_equal_sequences_tell_nothing(tmp_path: Path) -> None:
    rows = [row(1, 9.0), (8, 2000, 2000, 50.0, 90.0), row(8, 0.002)]
    ps, how = found(tmp_path, rows, kv_heads=16, num_sms=10)
    assert (
        ps == pytest.approx(2000) and how == "median of 1 row above the split threshold of 10 SMs"
    )


def test_without_the_number_of_sms_rows_with_an_effect_count(tmp_path: Path) -> None:
    ps, how = found(tmp_path, [row(2, -0.01), row(2, 0.0), row(2, 0.003)], kv_heads=1, num_sms=0)
    assert ps == pytest.approx(3000)
    assert how == "median of 1 row with a positive effect, because the number of SMs is not known"


def test_an_effect_is_never_negative_and_needs_a_row(tmp_path: Path) -> None:
    assert found(tmp_path, [row(8, -0.01)], kv_heads=4, num_sms=10)[0] == 0
    assert found(tmp_path, [row(2, 0.5)], kv_heads=4, num_sms=10) == (0, "none, no usable row")


@pytest.mark.parametrize(("kv", "element_bytes"), [("bf16", 2), ("fp8", 1)])
def test_the_mixed_kernel_reads_keys_and_values_once_per_query_head(
    kv: str, element_bytes: int
) -> None:
    """32 heads of 128 and as much for the values, over the measured bandwidth of the L2 cache."""
    wanted = request(hardware="RTXPRO6000", dtypes=Dtypes(kv=kv))
    attention = next(op for op in wanted.operators if op.kind == "attention")
    sheet = wanted.hardware
    assert sheet is not None and sheet.attention_kernel == "fa2"
    ps_per_token = 32 * 2 * 128 * element_bytes * 10**12 / sheet.l2_bandwidth_bytes_per_s
    assert mixed_decode_q20(wanted, attention) == round(ps_per_token * (1 << SKEW_FRACTION_BITS))
    for unknown in (None, replace(sheet, attention_kernel="fa3")):
        assert mixed_decode_q20(replace(wanted, hardware=unknown), attention) == 0


def test_a_card_without_a_measured_rate_computes_whole_tiles() -> None:
    """64 rows for the one of a decode, at the share of the dense rate that the measured card has;
    other kernels, and bundles of the machine itself, have no such loss.
    """
    wanted = request(hardware="A100")
    attention = next(op for op in wanted.operators if op.kind == "attention")
    ps_per_token = 32 * 64 * 4 * 128 * 10**12 / (0.41 * 312e12)
    found = mixed_decode_q20(wanted, attention)
    assert found == round(ps_per_token * (1 << SKEW_FRACTION_BITS))
    assert mixed_decode_q20(wanted, attention, derived=False) == 0
    sinks = replace(wanted, model=replace(wanted.model, attention_sinks=True))
    assert mixed_decode_q20(sinks, attention) == 0
    unknown = replace(wanted.hardware, flops={})
    assert mixed_decode_q20(replace(wanted, hardware=unknown), attention) == 0


def test_the_derived_share_is_that_of_the_measured_card() -> None:
    """One row of 64 at 3 TB/s from L2 on the RTX PRO 6000 is 0.41 of its dense rate."""
    wanted = request(hardware="RTXPRO6000")
    attention = next(op for op in wanted.operators if op.kind == "attention")
    assert wanted.hardware is not None
    unmeasured = replace(wanted.hardware, l2_bandwidth_bytes_per_s=None)
    derived = mixed_decode_q20(replace(wanted, hardware=unmeasured), attention)
    assert derived == pytest.approx(mixed_decode_q20(wanted, attention), rel=0.01)
