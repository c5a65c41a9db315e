"""What an hour of a device costs: the price of its data sheet, else the list price of its name."""

import json
from functools import cache

from msgspec.structs import replace

from llmsim.config import Group
from llmsim.config.files import input_files
from llmsim.model.types import Hardware
from llmsim.power.cost import Price
from llmsim.presets import PRESETS_DIR

PRICES = PRESETS_DIR / "prices.json"
DATA_SHEET = "data sheet"
LOOSE = {"quoted": "quoted, not its seller's list", "assumption": "an assumption"}


def price_of(sheet: Hardware) -> Price:
    """The price of one device; `usd_per_device_hour` is None where nobody states one."""
    if sheet.price_per_device_hour is not None:
        source = sheet.sources.get("price_per_device_hour", sheet.source)
        return Price(sheet.name, 1, sheet.price_per_device_hour, source, DATA_SHEET)
    return listed_price(sheet.name)


def price_of_group(group: Group, sheet: Hardware | None) -> Price:
    """The price of each of a group's devices: the cluster file's before all others."""
    listed = listed_price(group.hardware) if sheet is None else price_of(sheet)
    if group.price_per_device_hour is not None:
        price = group.price_per_device_hour
        listed = Price(group.hardware, 1, price, "cluster file", "cluster file")
    return replace(listed, hardware=group.hardware, devices=group.num_devices)


def listed_price(name: str) -> Price:
    """The list price of a device by the name of its data sheet."""
    return listed_prices().get(name, Price(name, 1, None, "not known"))


@cache
def listed_prices() -> dict[str, Price]:
    """Data sheet name -> what one device costs, who asked it and when."""
    data = json.loads(input_files.read_text(PRICES))
    return {
        name: Price(
            name, 1, float(entry["usd_per_device_hour"]), str(entry["source"]), str(entry["basis"])
        )
        for name, entry in data.items()
    }
