"""`llmsim.quick_dataclass` makes the classes of the standard decorator, method by method."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, Protocol

import pytest

import llmsim
from llmsim import quick_dataclass

Decorator = Callable[..., Any]
DECORATORS: dict[str, Decorator] = {
    "quick": quick_dataclass.dataclass,
    "standard": dataclasses.dataclass,
}


class Named(Protocol):
    """A base without fields."""

    label: ClassVar[str]


def family(dataclass: Decorator) -> dict[str, Any]:
    """Classes of every kind that the package has, made by one of the decorators."""

    @dataclass
    class Plain:
        a: int
        b: "list[int]" = field(default_factory=list)
        c: int = field(default=3, compare=False, repr=False)

    @dataclass(frozen=True)
    class Frozen(Named):
        label: ClassVar[str] = "frozen"
        a: int
        b: tuple[int, ...] = ()

        def __post_init__(self) -> None:
            object.__setattr__(self, "b", (*self.b, self.a))

    @dataclass(frozen=True)
    class Child(Frozen):
        c: int = 5
        a: int = 7

    @dataclass(frozen=True, kw_only=True)
    class Worded(Child):
        d: str

    class Between(Child):
        """No dataclass itself."""

    @dataclass(frozen=True, order=True)
    class Last(Between):
        e: float = 1.5

    @dataclass(frozen=True, eq=False)
    class ByIdentity:
        a: int = 1

    @dataclass(eq=False)
    class Mutable:
        a: int = 1

    @dataclass(frozen=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    @dataclass(frozen=True, repr=False)
    class Empty:
        pass

    @dataclass(frozen=True, slots=True)
    class Slotted:
        a: int = 2

    @dataclass
    class WithVariable:
        a: dataclasses.InitVar[int]
        b: int = 0

        def __post_init__(self, a: int) -> None:
            self.b = a

    return {name: made for name, made in locals().items() if isinstance(made, type)}


CASES = {name: family(decorator) for name, decorator in DECORATORS.items()}
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Plain", (1,), {}),
    ("Plain", (1, [2]), {"c": 4}),
    ("Frozen", (1, (2,)), {}),
    ("Child", (), {}),
    ("Child", (1, (2,), 3), {}),
    ("Worded", (1,), {"d": "x"}),
    ("Between", (4,), {}),
    ("Last", (1, (), 2, 3.5), {}),
    ("ByIdentity", (), {}),
    ("Mutable", (), {}),
    ("Own", (1,), {}),
    ("Empty", (), {}),
    ("Slotted", (), {}),
    ("WithVariable", (3,), {}),
]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the kind and the sentence of its error."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__, str(error)


def seen(cls: type, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Everything that a program can see of an object and its class."""
    one, equal = cls(*arguments, **named), cls(*arguments, **named)
    first = next((field.name for field in dataclasses.fields(one)), "none")
    hashed = outcome(lambda: hash(one) == hash(equal))
    by_value = cls.__hash__ is not object.__hash__
    return {
        "signature": str(inspect.signature(cls)),
        "fields": [
            (f.name, f.type, f.default, f.kw_only, f.compare, f.repr)
            for f in dataclasses.fields(one)
        ],
        "match": cls.__match_args__ if hasattr(cls, "__match_args__") else None,
        "repr": repr(one) if cls.__repr__ is not object.__repr__ else "",
        "equal": (one == equal, one == copy.copy(one), one == 1),
        "hash": hashed if by_value else "by identity",
        "less": outcome(lambda: one < equal),
        "at_most": outcome(lambda: one <= equal),
        "values": dataclasses.asdict(one),
        "replaced": outcome(lambda: dataclasses.asdict(dataclasses.replace(one, **named))),
        "assign": outcome(lambda: setattr(one, first, 9)),
        "delete": outcome(lambda: delattr(one, first)),
        "new": outcome(lambda: setattr(one, "unknown", 9)),
        "too_many": outcome(lambda: cls(*range(20))),
        "unknown": outcome(lambda: cls(unknown=1)),
        "qualname": cls.__init__.__qualname__.rpartition("<locals>.")[2],
        "params": repr(getattr(cls, "__dataclass_params__", None)),
    }


@pytest.mark.parametrize(("name", "arguments", "named"), CALLS)
def test_objects_behave_as_those_of_the_standard_library(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    quick, standard = (seen(CASES[kind][name], arguments, named) for kind in DECORATORS)
    assert quick == standard


@pytest.mark.parametrize("name", ["__init__", "__repr__", "__eq__", "__hash__"])
def test_methods_are_made_when_somebody_looks(name: str) -> None:
    @quick_dataclass.dataclass(frozen=True)
    class Fresh:
        a: int

    before = Fresh.__dict__[name]
    made = getattr(Fresh, name)
    assert Fresh.__dict__[name] is made is getattr(Fresh, name)
    assert before is not made


def test_a_wrong_default_is_an_error_of_the_first_use() -> None:
    @quick_dataclass.dataclass
    class Shared:
        a: list[int] = []  # noqa: RUF012

    with pytest.raises(ValueError, match="mutable default <class 'list'> for field a"):
        Shared()


@quick_dataclass.dataclass(frozen=True)
class Kept:
    """A class that pickle finds by its name."""

    a: int
    b: tuple[int, ...] = ()


def test_objects_pickle_and_match() -> None:
    one = Kept(1, (2,))
    assert pickle.loads(pickle.dumps(one)) == one
    match one:
        case Kept(a, b):
            assert (a, b) == (1, (2,))
        case _:
            raise AssertionError(one)


def quick_classes() -> list[type]:
    """Every class of the package that the decorator made."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(llmsim.__path__, "llmsim."):
        if module.name.endswith("__main__") or ".emulation." in module.name:
            continue
        loaded = outcome(lambda name=module.name: importlib.import_module(name))
        for cls in vars(loaded).values() if inspect.ismodule(loaded) else ():
            if isinstance(cls, type) and quick_dataclass.RECIPE in cls.__dict__:
                found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return list(found.values())


def test_all_classes_of_the_package_have_the_standard_signature() -> None:
    """The standard library makes the same `__init__` of their fields, and takes every default."""
    checked = 0
    for cls in quick_classes():
        recipe: quick_dataclass.Recipe = cls.__dict__[quick_dataclass.RECIPE]
        made, standard = (inspect.signature(one.__init__) for one in (cls, recipe.twin(init=True)))
        assert str(made) == str(standard), cls
        checked += 1
    assert checked > 350
