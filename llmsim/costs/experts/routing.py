"""How a router spreads tokens over experts: `--expert-routing-policy NAME[:key=value]`, a recorded
trace, or a class.

A policy is one array of popularities, layers x experts (or snapshots of it), made once before a
run; which experts a step really loads is then drawn from it, per layer and step (expert_loads.py).
"""

import hashlib
import io
import tokenize
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.config.errors import InputError, nearest
from llmsim.config.files.reading import file_bytes, file_text, json_file, json_value, quoted
from llmsim.config.plugin_calls import defined_at, foreign_code, guarded
from llmsim.config.plugins import Kind, entry_points, parse_class, split_options

Floats = NDArray[np.float64]
OPTION = "--expert-routing-policy"
DEFAULT = "UNIFORM"
MOST_CELLS = 1 << 24
"""Layers times experts of a table."""
MOST_TOKENS = 1e18
"""Of one expert of one layer."""
DISTRIBUTIONS: Mapping[str, tuple[str, Mapping[str, tuple[float, float, float]]]] = (
    MappingProxyType(
        {
            "UNIFORM": (
                "every expert equally likely; layers take what the fullest rank takes on average",
                {},
            ),
            "BALANCED": (
                "the expected load of a router without preferences, the same on every rank",
                {},
            ),
            "FAST": ("LLMServingSim 1.0's name of BALANCED", {}),
            "RR": ("experts in turn: token after token, the next top-k", {}),
            "RAND": ("every expert equally likely, drawn", {}),
            "ZIPF": (
                "popularity falls with the rank of an expert: rank^-s",
                {"s": (1.0, 0.0, 10.0)},
            ),
            "POWER_LAW": (
                "popularities have the density x^-alpha between 1 and the number of experts",
                {"alpha": (1.2, 0.0, 10.0)},
            ),
        }
    )
)
"""Name -> what it is, and its options: default, least, largest."""
EXPERT_ROUTER = Kind(
    "expert router",
    OPTION,
    "llmsim.expert_routers",
    {
        "popularity": (
            "popularity(layers, experts, seed), which says how popular each expert of each layer is"
        )
    },
    "my_module:MyExperts:skew=2",
)


class ExpertRouter(Protocol):
    """Says which experts tokens like; asked once for each model of a deployment, never in the run.

    With several snapshots a step takes one of them: loads that change over time, as a recorded
    trace has them. With an attribute `in_order` that is true steps take them in turn, and loads are
    these shares, not drawn from them.
    """

    def popularity(self, layers: int, experts: int, seed: int) -> Any:
        """Relative popularity of every expert, shape ([snapshots,] layers, experts);
        not negative.
        """


class ExpertRouting(Struct, frozen=True, eq=False):
    """A checked policy. `policy`: an object with `popularity`; `recorded`: that array itself, from
    a trace.
    """

    name: str = DEFAULT
    value: float = 0.0
    """Its exponent, where it has one."""
    recorded: Floats | None = None
    policy: ExpertRouter | None = None
    label: str = DEFAULT
    seed: int = 0
    in_order: bool = False
    """The snapshots are a recording of steps, which are taken in turn; nothing is drawn."""

    @property
    def balanced(self) -> bool:
        """Whether no step draws loads of its own."""
        return self.name in ("UNIFORM", "BALANCED", "FAST")

    @property
    def waits_for_fullest(self) -> bool:
        """Whether a layer takes the expected time of its fullest rank, not that of an even one."""
        return self.name == "UNIFORM"

    def popularity(self, layers: int, experts: int) -> Floats:
        """Shape (snapshots, layers, experts), each row's sum 1. InputError where a trace or class
        does not fit.
        """
        if self.recorded is not None or self.policy is not None:
            return _checked(self._given(layers, experts), self._named(), layers, experts)
        rng = np.random.default_rng([self.seed, 17])
        weights = np.ones((layers, experts))
        if self.name == "ZIPF":
            weights = rng.permuted(
                np.tile(np.arange(1.0, experts + 1) ** -self.value, (layers, 1)), axis=1
            )
        elif self.name == "POWER_LAW":
            weights = _power_law(rng.random((layers, experts)), self.value, float(experts))
        return np.asarray((weights / weights.sum(axis=1, keepdims=True))[None])

    def _named(self) -> str:
        """The option, and where a class of the user's is written."""
        return (
            self.label
            if self.policy is None
            else f"{self.label} ({defined_at(self.policy.popularity)})"
        )

    def _given(self, layers: int, experts: int) -> Any:
        if self.recorded is not None:
            return self.recorded
        assert self.policy is not None, "the caller looked"
        with foreign_code():
            return guarded(f"{self.label}: popularity", self.policy.popularity)(
                layers, experts, self.seed
            )

    def __repr__(self) -> str:
        """Equal for equal policies: part of the key of compiled tables."""
        array = self.recorded
        if self.policy is not None:
            return f"ExpertRouting({self.label}, {id(self.policy)})"
        digest = "" if array is None else hashlib.sha256(array.tobytes()).hexdigest()
        seed = self.seed if not self.balanced else 0
        return f"ExpertRouting({self.name}, {self.value}, {digest}, {seed}, {self.in_order})"

    def with_array(self, layers: int, experts: int) -> "ExpertRouting":
        """The same with what its class says as an array, so that equal answers have equal keys."""
        if self.policy is None:
            return self
        return replace(self, recorded=self.popularity(layers, experts), policy=None)


def _power_law(uniform: Floats, alpha: float, most: float) -> Floats:
    """Inverse of the distribution function of the density x^-alpha on [1, most]."""
    if abs(alpha - 1.0) < 1e-9:
        return np.asarray(most**uniform)
    power = 1.0 - alpha
    return np.asarray(((most**power - 1.0) * uniform + 1.0) ** (1.0 / power))


def _checked(given: Any, label: str, layers: int, experts: int) -> Floats:
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"{label}: popularities must be an array of numbers, layers x experts"
        ) from None
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.shape[1:] != (layers, experts) or not len(array):
        raise InputError(
            f"{label}: popularities have the shape {array.shape}, but must be ({layers}, {experts})"
        )
    if not ((array >= 0) & (array <= MOST_TOKENS)).all() or not (array.sum(axis=2) > 0).all():
        most = f"from 0 to {MOST_TOKENS:g}"
        raise InputError(f"{label}: popularities must be numbers {most}, and no layer all zero")
    return np.asarray(array / array.sum(axis=2, keepdims=True))


def parse_expert_routing(text: str, seed: int = 0) -> ExpertRouting:
    """NAME[:key=value], TRACE:path, or module:Class; InputError says what is known."""
    name, _, rest = text.partition(":")
    upper = name.upper()
    if upper in ("TRACE", "REPLAY"):
        recorded = _read_trace(upper, rest)
        return ExpertRouting(
            upper,
            recorded=recorded,
            label=f"{OPTION} {text}",
            seed=seed,
            in_order=upper == "REPLAY",
        )
    if upper == "CUSTOM":
        raise InputError(
            f"{OPTION} CUSTOM: name the class of your policy, as in {OPTION} my_module:MyExperts"
        )
    if upper not in DISTRIBUTIONS:
        chosen, _ = split_options(OPTION, text, EXPERT_ROUTER.example) if rest else (text, {})
        if ":" in chosen or chosen in entry_points(EXPERT_ROUTER.group):
            return _python_policy(text, seed)
        known = [*DISTRIBUTIONS, "TRACE:path", "REPLAY:path", "module:Class"]
        raise InputError(
            f'{OPTION} is "{text}"{nearest(upper, DISTRIBUTIONS)}; it may be {", ".join(known)}'
        )
    options = DISTRIBUTIONS[upper][1]
    values = {key: default for key, (default, _, _) in options.items()}
    for part in filter(None, rest.split(",")):
        key, _, number = part.partition("=")
        if key not in options:
            has = f"{upper} has {', '.join(options)}" if options else f"{upper} has no options"
            raise InputError(f'{OPTION} {text}: unknown option "{key}"; {has}')
        values[key] = _number(text, key, number, *options[key][1:])
    return ExpertRouting(
        upper, next(iter(values.values()), 0.0), label=f"{OPTION} {text}", seed=seed
    )


def _number(text: str, key: str, number: str, least: float, most: float) -> float:
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InputError(
            f"{OPTION} {text}: {key} is {number}, but must be a number from {least:g} to {most:g}"
        )
    return value


def _python_policy(text: str, seed: int) -> ExpertRouting:
    _, make = parse_class(EXPERT_ROUTER, text)
    policy = make()
    in_order = bool(getattr(policy, "in_order", False))
    return ExpertRouting(
        "PYTHON", policy=policy, label=f"{OPTION} {text}", seed=seed, in_order=in_order
    )


def _read_trace(how: str, name: str) -> Floats:
    """Tokens that each expert of each layer got: .npy, .json (nested lists), .jsonl with a line for
    each step, or .csv with layer,expert,tokens.
    """
    path = Path(name)
    where = f"{OPTION} {how}:{name}"
    wanted = "a table of numbers, layers x experts"
    if path.suffix == ".npy":
        return _numpy_array(path, where)
    if path.suffix == ".json":
        return _numeric(json_file(path, wanted), where)
    if path.suffix == ".jsonl":
        lines = enumerate(file_text(path, wanted).split("\n"), 1)
        steps = [
            json_value(line, path, wanted, line=number) for number, line in lines if line.strip()
        ]
        return _numeric(steps, where)
    if path.suffix == ".csv":
        return _from_rows(path)
    raise InputError(
        f"{where}: must be .npy, .json, .jsonl or .csv (columns layer, expert, tokens)"
    )


def _numpy_array(path: Path, where: str) -> Floats:
    """The array of a .npy file; InputError where numpy cannot read it, whatever it raises for a
    damaged header.
    """
    data = file_bytes(path, "a .npy file")
    try:
        with np.errstate(
            all="ignore"
        ):  # numpy computes with the shape of a damaged header before it refuses it
            return _numeric(np.load(io.BytesIO(data), allow_pickle=False), where)
    except (
        ValueError,
        TypeError,
        EOFError,
        SyntaxError,
        KeyError,
        IndexError,
        OverflowError,
        MemoryError,
    ) as error:
        said = " ".join(str(error).split()) or type(error).__name__
    except tokenize.TokenError:
        said = "its header is damaged"
    raise InputError(f"{where}: not readable as a .npy file ({said})")


def _numeric(values: Any, where: str) -> Floats:
    """Nested lists or an array as one array of floats; InputError where they are ragged or no
    numbers.
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where}: not a table of numbers ({error})") from None


def _cell(cells: list[str]) -> tuple[tuple[int, int], float] | None:
    """Layer and expert, and their tokens; None where they are no such numbers."""
    try:
        layer, expert, tokens = int(cells[0]), int(cells[1]), float(cells[2])
    except (ValueError, IndexError):
        return None
    fits = (
        len(cells) == 3
        and 0 <= layer < MOST_CELLS
        and 0 <= expert < MOST_CELLS
        and 0 <= tokens <= MOST_TOKENS
    )
    return ((layer, expert), tokens) if fits else None


def _from_rows(path: Path) -> Floats:
    wanted = "a table with the columns layer,expert,tokens"
    lines = file_text(path, wanted).split()
    if not lines or lines[0].split(",") != ["layer", "expert", "tokens"]:
        raise InputError(f"{path}:1: the header must be layer,expert,tokens", file=str(path))
    counts: dict[tuple[int, int], float] = {}
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split(",")
        key, tokens = _cell(cells) or ((0, 0), -1.0)
        if tokens < 0:
            raise InputError(
                f"{path}:{number}: {quoted(line)} is not layer,expert,tokens", file=str(path)
            )
        counts[key] = counts.get(key, 0.0) + tokens
    if not counts:
        raise InputError(f"{path}:2: the table has no rows", file=str(path))
    layers, experts = (1 + max(key[axis] for key in counts) for axis in (0, 1))
    if layers * experts > MOST_CELLS:
        raise InputError(
            f"{path}: {layers} layers x {experts} experts; at most 2^24 cells are read",
            file=str(path),
        )
    array = np.zeros((layers, experts))
    for (layer, expert), tokens in counts.items():
        array[layer, expert] = tokens
    return array
