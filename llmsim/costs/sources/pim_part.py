"""DRAM parts that compute: what a part file (.ini, as DRAMSim3 writes them) says, and how fast
decodes attend there.

All sections are read. From [dram_structure] banks and page size, from [timing] how often all banks
of a channel can open and stream a row, from [system] what a channel holds and its bus, from [power]
and [other] what it draws.

    page      = columns * device_width / 8 * (bus_width / device_width)             bytes of one
    bank's row, all devices row time  = max(tRCD + columns / BL * tCCD_L, tRAS) + tRP
    one bank: open, stream, close period    = max(row time, banks / 4 * tFAW)
    all banks: four may open per tFAW inside    = banks * page / (period * tCK) * (1 - tRFC / tREFI)
    bytes/s that the banks' units see

A unit multiplies what its bank streams with one query head at a time, so that H query heads over K
KV heads read every key and value H / K times (`pim_queries_per_read` in [other] heads at once:
fewer). Scores leave over the channel's bus for the softmax and come back, 2 bytes each.
"""

import math
from fractions import Fraction
from pathlib import Path

from msgspec import Struct

from llmsim.config.errors import InputError, nearest
from llmsim.config.files import input_files
from llmsim.config.files.reading import file_text
from llmsim.costs.source import to_ps
from llmsim.costs.sources.csv_tables import read_table
from llmsim.presets import PRESETS_DIR

PARTS_DIR = PRESETS_DIR / "pim"
SCORE_BYTES = 4
"""A score out and a probability in, 2 bytes each."""
PS_PER_NS = 1000


class PimPart(Struct, frozen=True):
    """One channel of a part; times in ps, energies from the part file's own figures."""

    name: str
    banks: int
    page_bytes: int
    row_ps: int
    """One bank: open a row, stream it, close it."""
    period_ps: int
    """All banks of the channel do that once."""
    access_ps: int
    """CAS latency: what the first byte waits."""
    refresh_share: float
    """Of the time that a channel is refreshed."""
    channel_bytes: int
    bus_bytes_per_s: int
    idle_w: float
    peak_w: float
    concurrent: bool
    """`pim_type = DUAL`: a second row buffer serves reads and writes while the banks compute."""
    queries_per_read: int

    @property
    def inside_bytes_per_s(self) -> float:
        """What the units of all banks of one channel stream together."""
        return self.banks * self.page_bytes / (self.period_ps * 1e-12) * (1.0 - self.refresh_share)


def pim_part_names() -> tuple[str, ...]:
    """The bundled parts."""
    return tuple(sorted(path.stem for path in PARTS_DIR.glob("*.ini")))


def load_pim_part(name: str, folder: Path) -> PimPart:
    """A part by the path of its file, or by its stem: in `folder`, its pim_config, the one beside
    it, or bundled.
    """
    stem = name.removesuffix(".ini")
    places = [
        folder,
        folder / "pim_config",
        folder.parent / "pim_config",
        Path("pim_config"),
        PARTS_DIR,
    ]
    for place in places:
        path = place / f"{stem}.ini"
        if input_files.is_file(path):
            return read_pim_part(path)
    known = pim_part_names()
    raise InputError(
        f'the memory part "{name}" is not known{nearest(stem, known)}; bundled are '
        f"{', '.join(known)}"
    )


def read_pim_part(path: Path) -> PimPart:
    """Reads one part file; InputError names section, key and value of what is missing or
    impossible.
    """
    import configparser

    parser = configparser.ConfigParser(inline_comment_prefixes=("#", ";"), interpolation=None)
    text = file_text(path, "a part file (.ini)")
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InputError(
            f"{path}: not a part file ({str(error).splitlines()[0]})", file=str(path)
        ) from None
    file = _File(path, {section.lower(): dict(parser[section]) for section in parser.sections()})
    structure, system = "dram_structure", "system"
    width, bus = file.count(structure, "device_width"), file.count(system, "bus_width")
    if bus % width:
        raise InputError(
            f"{path}: [system] bus_width is {bus}; it must be a multiple of device_width, {width}",
            file=str(path),
        )
    banks = file.count(structure, "bankgroups") * file.count(structure, "banks_per_group")
    columns, burst = file.count(structure, "columns"), file.count(structure, "bl")
    clock = file.number("timing", "tck")
    rcd = file.count("timing", "trcd" if file.has("timing", "trcd") else "trcdrd")
    streaming = rcd + -(-columns // burst) * file.count("timing", "tccd_l")
    row = max(streaming, file.count("timing", "tras")) + file.count("timing", "trp")
    period = max(row, -(-banks * file.count("timing", "tfaw") // 4))
    page = columns * width // 8 * (bus // width)
    held = banks * file.count(structure, "rows") * page
    channel = max(held, file.count(system, "channel_size") << 20)
    kind = file.text(structure, "pim_type", "SINGLE").upper()
    if kind not in ("SINGLE", "DUAL"):
        raise InputError(
            f"{path}: [dram_structure] pim_type is {kind}; it may be SINGLE or DUAL", file=str(path)
        )
    idle, peak = _power_w(file, banks)
    return PimPart(
        name=path.stem,
        banks=banks,
        page_bytes=page,
        row_ps=_ps(row, clock),
        period_ps=_ps(period, clock),
        access_ps=_ps(file.count("timing", "cl"), clock),
        refresh_share=file.count("timing", "trfc") / file.count("timing", "trefi"),
        channel_bytes=channel,
        bus_bytes_per_s=_bus_bytes_per_s(file, bus, clock),
        idle_w=idle,
        peak_w=peak,
        concurrent=kind == "DUAL",
        queries_per_read=file.count("other", "pim_queries_per_read", 1),
    )


def _bus_bytes_per_s(file: "_File", bus: int, clock_ns: float) -> int:
    """[other] data_rate (MT/s) where it is given, else two transfers per clock."""
    rate = (
        file.number("other", "data_rate") * 1e6
        if file.has("other", "data_rate")
        else 2e9 / clock_ns
    )
    return round(bus / 8 * rate)


def _power_w(file: "_File", banks: int) -> tuple[float, float]:
    """Idle and peak power of a channel: [other] idle_power and peak_power (mW), else from [power]:
    VDD (V) times IDD3N in standby and IDD4R reading (mA, one device), all devices of the channel
    together.
    """
    del banks
    if file.has("other", "idle_power") and file.has("other", "peak_power"):
        idle, peak = (file.number("other", name) / 1000 for name in ("idle_power", "peak_power"))
    else:
        devices = file.count("system", "bus_width") // file.count("dram_structure", "device_width")
        volts = file.number("power", "vdd")
        idle, peak = (
            volts * file.number("power", name) * devices / 1000 for name in ("idd3n", "idd4r")
        )
    if idle > peak:
        raise InputError(f"{file.path}: idle power {idle:g} W exceeds peak power {peak:g} W")
    return idle, peak


def _ps(cycles: int, clock_ns: float) -> int:
    return math.ceil(Fraction(repr(clock_ns)) * cycles * PS_PER_NS)


class _File(Struct, frozen=True):
    """The sections of a part file, keys in lower case."""

    path: Path
    sections: dict[str, dict[str, str]]

    def has(self, section: str, key: str) -> bool:
        return key in self.sections.get(section, {})

    def text(self, section: str, key: str, default: str) -> str:
        return self.sections.get(section, {}).get(key, default).strip()

    def number(self, section: str, key: str) -> float:
        """A positive, finite number."""
        if not self.has(section, key):
            raise InputError(f"{self.path}: [{section}] has no {key}", file=str(self.path))
        text = self.sections[section][key].strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < 1e15:
            raise InputError(
                f"{self.path}: [{section}] {key} is {text}; it must be a positive number",
                file=str(self.path),
            )
        return value

    def count(self, section: str, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        if default is not None and not self.has(section, key):
            return default
        value = self.number(section, key)
        if value != int(value):
            raise InputError(
                f"{self.path}: [{section}] {key} is {value:g}; it must be a whole number",
                file=str(self.path),
            )
        return int(value)


def read_pim_table(path: Path) -> tuple[list[int], list[int]]:
    """Contexts (tokens, ascending) and ps of one sequence's decode attention in one layer, on its
    channels.

    The table of a simulator of the memory: columns context_tokens and time_us. InputError names
    file and line.
    """
    table = read_table(path, text=[], numbers=["context_tokens", "time_us"])
    context = table.number["context_tokens"]
    for row in range(len(table)):
        if context[row] != int(context[row]) or (row and context[row] <= context[row - 1]):
            raise InputError(
                f"{path}:{table.line[row]}:1: context_tokens is {context[row]:g}; it must be a "
                "whole number above the one before",
                file=str(path),
            )
    return [int(one) for one in context], to_ps(table.number["time_us"]).tolist()


class PimAttention(Struct, frozen=True):
    """One sequence's decode attention in one layer, on the channels that share its KV heads: fixed
    + L * per token.
    """

    channels: int
    fixed_ps: float
    ps_per_token: float

    def ps(self, context: int) -> int:
        """At a context of that many tokens."""
        return math.ceil(self.fixed_ps + context * self.ps_per_token)


def pim_attention(
    part: PimPart, *, channels: int, kv_bytes: int, heads: int, kv_heads: int
) -> PimAttention:
    """Attention of one rank with `channels` channels; `kv_bytes` of K and V per token in one layer.

    A sequence's KV heads lie on different channels, as far as there are some; K and then V pass
    through the units.
    """
    split = max(1, min(channels, kv_heads))
    passes = -(-(heads // kv_heads) // part.queries_per_read)
    scores = SCORE_BYTES * (heads / split) / part.bus_bytes_per_s
    read = kv_bytes / split * passes / part.inside_bytes_per_s
    return PimAttention(split, 2.0 * (part.row_ps + part.access_ps), (scores + read) * 1e12)
