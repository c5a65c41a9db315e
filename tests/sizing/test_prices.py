"""Prices of data sheets: `llmsim size`, runs and studies take them before the list of prices."""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.config.errors import InputError
from llmsim.model.hardware import HARDWARE_DIR, data_sheet
from llmsim.sizing.answer import text
from llmsim.sizing.size import price_of, size

MODEL = "Qwen/Qwen3-8B"
ASKED: dict[str, Any] = {"rate": 5.0, "slo": "ttft:2000,tpot:100", "architecture": "colocated"}


def own_sheet(folder: Path, name: str, **fields: Any) -> str:
    """The path of a data sheet of an H100 under another name."""
    sheet = json.loads((HARDWARE_DIR / "h100_sxm.json").read_text()) | {"name": name} | fields
    path = folder / f"{name}.json"
    path.write_text(json.dumps(sheet))
    return str(path)


def test_the_cheaper_of_two_equal_devices_wins(tmp_path: Path) -> None:
    dear = own_sheet(tmp_path, "dear", price_per_device_hour=7.5)
    cheap = own_sheet(tmp_path, "cheap", price_per_device_hour=2)
    answer = size(MODEL, [dear, cheap], **ASKED)
    assert answer.best is not None
    assert answer.best.plan.device == cheap
    assert answer.as_json()["best"]["usd_per_h"] == 2.0 * answer.best.plan.devices
    assert "2.00 USD/h" in text(answer)
    assert answer.as_json()["without_price"] == []


def test_devices_are_counted_where_one_has_no_price(tmp_path: Path) -> None:
    free = own_sheet(tmp_path, "unpriced")
    answer = size(MODEL, [free, "H100"], **ASKED)
    assert answer.as_json()["without_price"] == [free]
    said = f"{free} has no price, so devices were counted, not USD; price_per_device_hour of a data"
    assert said in text(answer)


def test_a_run_takes_the_price_of_the_sheet(tmp_path: Path) -> None:
    own = own_sheet(tmp_path, "mine", price_per_device_hour=1.25)
    cluster = llmsim.Cluster.build(MODEL, own, instances=2)
    cost = llmsim.run(cluster, "synthetic:n=4,rate=1,input=fixed:64,output=fixed:4").summary["cost"]
    assert cost["price_per_hour"] == 2.5
    assert [group["basis"] for group in cost["groups"]] == ["data sheet"]


def test_a_sheet_without_a_price_takes_the_list_price_of_its_name(tmp_path: Path) -> None:
    assert price_of(own_sheet(tmp_path, "H100-SXM")) == price_of("H100")
    assert price_of(own_sheet(tmp_path, "H100-SXM", price_per_device_hour=0)) == 0
    assert price_of(own_sheet(tmp_path, "other")) is None


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (-1, "price_per_device_hour is -1; USD from 0 to 1,000,000 were expected"),
        (10**7, "price_per_device_hour is 1e+07; USD from 0 to 1,000,000 were expected"),
        ("2.5", 'price_per_device_hour is "2.5"; a valid number was expected'),
        (float("nan"), "price_per_device_hour is"),
        (True, "price_per_device_hour is"),
    ],
)
def test_prices_that_are_none_are_refused(tmp_path: Path, price: object, said: str) -> None:
    path = own_sheet(tmp_path, "bad", price_per_device_hour=price)
    with pytest.raises(InputError) as caught:
        data_sheet(path)
    assert f"{path}: {said}" in str(caught.value)
