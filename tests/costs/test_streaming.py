"""Kernels that only move data: the card's own curve over bytes, and the physics it must show."""

import numpy as np
import pytest
from msgspec.structs import replace

from llmsim.core import Provenance
from llmsim.costs.hardware_limits import peak_rates_of
from llmsim.costs.sources.silicon.attention.mla import INSIDE
from llmsim.costs.sources.silicon.database import Database, find_database
from llmsim.costs.sources.silicon.memory_bound import REDUCTION_US, from_peak_rates, streaming
from llmsim.model import Elementwise
from tests.costs.builders import needs_database, request

pytestmark = needs_database
CARDS = ("H100", "H200", "B200", "L40S", "RTX-PRO-6000")


def database(hardware: str) -> Database:
    """The tables of a card."""
    found = find_database(request(hardware=hardware))
    assert found is not None
    return found


def moving(name: str, num_bytes: int, *, reduces: bool = False) -> Elementwise:
    """An operator that reads and writes so many bytes per token."""
    return Elementwise(
        name=name,
        repeat=1,
        reduces=reduces,
        read_bytes_per_token=num_bytes - num_bytes // 3,
        write_bytes_per_token=num_bytes // 3,
    )


@pytest.mark.parametrize("hardware", CARDS)
def test_a_curve_has_a_fixed_part_a_cache_and_a_memory(hardware: str) -> None:
    asked = request(hardware=hardware)
    peak_rates = peak_rates_of(asked)
    assert peak_rates is not None
    curve = streaming(database(hardware), peak_rates)
    assert curve.measured
    assert curve.provenance is Provenance.SCALED
    sizes = np.array([1.0, 1e3, 1e5, 1e6, 1e7, 1e8, 1e9])
    us = curve.curve_us(moving("act_fn", 1), sizes)
    assert (np.diff(us) >= 0).all()
    assert us[0] < 3.0  # a launch
    assert (
        us[-1] > 1e9 / peak_rates.memory_bandwidth_bytes_per_s * 1e6
    )  # beyond the cache never faster than memory
    in_cache = 0.2 * peak_rates.last_level_cache_bytes
    rate = in_cache / (curve.curve_us(moving("act_fn", 1), np.array([in_cache]))[0] - us[0]) * 1e6
    assert (
        rate > peak_rates.memory_bandwidth_bytes_per_s or hardware == "B200"
    )  # its memory is as fast as its cache here


def test_time_goes_by_the_bytes_that_all_tokens_move() -> None:
    """Many tokens of few bytes take as long as few tokens of many."""
    peak_rates = peak_rates_of(request(hardware="H100"))
    assert peak_rates is not None
    curve, tokens = streaming(database("H100"), peak_rates), np.array([1.0, 64.0, 4096.0])
    wide, narrow = (
        curve.curve_us(moving("act_fn", 16384), tokens),
        curve.curve_us(moving("act_fn", 1), 16384 * tokens),
    )
    assert wide == pytest.approx(narrow) and (np.diff(wide) > 0).all()


def test_a_reduction_costs_its_share() -> None:
    peak_rates = peak_rates_of(request(hardware="H100"))
    assert peak_rates is not None
    curve, counts = streaming(database("H100"), peak_rates), np.array([1.0, 64.0, 4096.0])
    plain, reduced = (
        curve.curve_us(moving("norm", 16384, reduces=reduces), counts) for reduces in (False, True)
    )
    assert reduced - plain == pytest.approx(REDUCTION_US)


def test_without_a_table_the_data_sheet_makes_the_curve() -> None:
    peak_rates = peak_rates_of(request(hardware="A100"))
    assert peak_rates is not None
    empty = Database("none", database("A100").root, "0", ())
    curve = streaming(empty, peak_rates)
    assert not curve.measured
    assert curve.provenance is Provenance.ANALYTIC
    wide = from_peak_rates(
        replace(
            peak_rates, memory_bandwidth_bytes_per_s=2 * peak_rates.memory_bandwidth_bytes_per_s
        )
    )
    big = np.array([1e9])
    slow, fast = (one.curve_us(moving("act_fn", 1), big)[0] for one in (curve, wide))
    assert 1.9 < slow / fast < 2.0


def test_latent_modules_leave_no_operator_twice() -> None:
    assert len(set(INSIDE)) == len(INSIDE)
