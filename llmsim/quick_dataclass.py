"""`dataclass` of the standard library, whose methods are compiled when they are first used.

Generated methods take most of the time that the standard decorator needs, and a process uses few of
them: a run of 300 requests defines 310 classes, makes objects of a third, and compares a tenth.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **settings: bool) -> Any:
        """The decorator `dataclasses.dataclass`, with the same settings and the same classes.

        A field's wrong default raises at the first use of the class, not at its definition.
        """
        if cls is None:
            return lambda decorated: _dataclass(decorated, settings)
        return _dataclass(cls, settings)


RECIPE = "__llmsim_recipe__"
SETTINGS = frozenset({"frozen", "eq", "order", "kw_only", "repr"})
"""A class with another setting is made by the standard library, when it is defined."""
ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
OTHER_KINDS = ("InitVar", "KW_ONLY")
"""Annotations that make no plain field."""


class _Factory:
    """Stands for "call the field's factory" in a signature."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class Recipe:
    """What a class defines beside its methods: the fields with their defaults, and the settings."""

    def __init__(self, cls: type, own: dict[str, Any], settings: dict[str, bool]) -> None:
        self.cls = cls
        self.settings = settings
        namespace = cls.__dict__
        self.own = own
        self.defaults = {name: namespace[name] for name in own if name in namespace}
        self._plain_twin: type | None = None

    def setting(self, name: str) -> bool:
        """A setting of the decorator; `eq` and `repr` are on where nothing is said."""
        return self.settings.get(name, name in ("eq", "repr"))

    def twin(self, **settings: bool) -> type:
        """A class with the same fields and name, made by the standard library; no method is
        compiled that the settings do not ask for.
        """
        quiet = {"init": False, "repr": False, "eq": False, **settings}
        recipes = [recipe for recipe in map(_recipe, self.cls.__bases__) if recipe]
        bases = tuple(recipe.plain_twin() for recipe in dict.fromkeys(recipes))
        named = {"__module__": self.cls.__module__, "__qualname__": self.cls.__qualname__}
        body = {**named, "__doc__": "Fields.", "__annotations__": self.own, **self.defaults}
        made = type(self.cls.__name__, bases, body)
        return dataclasses.dataclass(made, kw_only=self.setting("kw_only"), **quiet)

    def plain_twin(self) -> type:
        """The twin without methods; classes that share a base share its twin, too."""
        if self._plain_twin is None:
            self._plain_twin = self.twin()
        return self._plain_twin

    def parameters(self) -> "list[Parameter]":
        """The fields in the order of `__init__`: those of bases first, each as the last class that
        declares it says.
        """
        merged: dict[str, Parameter] = {}
        for base in reversed(self.cls.__mro__):
            recipe: Recipe | None = base.__dict__.get(RECIPE)
            if recipe is None:
                continue
            kw_only = recipe.setting("kw_only")
            for name, annotation in recipe.own.items():
                inherited = merged[name].default if name in merged else dataclasses.MISSING
                default = recipe.defaults.get(name, inherited)
                merged[name] = Parameter(name, annotation, default, kw_only)
        return list(merged.values())

    def names(self) -> frozenset[str]:
        """The names of all fields, those of bases among them."""
        inherited = (_recipe(base) for base in self.cls.__mro__)
        return frozenset(name for recipe in inherited if recipe for name in recipe.own)


def _dataclass(cls: type, settings: dict[str, bool]) -> type:
    own = {name: one for name, one in _annotations(cls).items() if not _is_of_class(one)}
    if not settings.keys() <= SETTINGS or not _is_plain(cls, own):
        return dataclasses.dataclass(**settings)(cls)
    recipe = Recipe(cls, own, settings)
    for name, value in recipe.defaults.items():
        if isinstance(value, dataclasses.Field):
            _set_default(cls, name, value)
    setattr(cls, RECIPE, recipe)
    explicit = cls.__dict__
    for name, make in _methods(recipe, explicit).items():
        setattr(cls, name, _OnUse(recipe, name, make))
    if recipe.setting("frozen"):
        _freeze(cls, recipe)
    elif recipe.setting("eq") and explicit.get("__hash__") is None:
        cls.__hash__ = None  # type: ignore[assignment]
    return cls


def _annotations(cls: type) -> dict[str, Any]:
    """The annotations of the class itself, in the order of its fields."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)


def _is_plain(cls: type, own: dict[str, Any]) -> bool:
    """Whether every annotation is a field of `__init__`, and every base is known here."""
    fields = (value for value in cls.__dict__.values() if isinstance(value, dataclasses.Field))
    return (
        all(field.init for field in fields)
        and not any(_is_other(annotation) for annotation in own.values())
        and "self" not in own
        and "__slots__" not in cls.__dict__
        and all(
            RECIPE in base.__dict__ or "__dataclass_fields__" not in base.__dict__
            for base in cls.__mro__[1:]
        )
    )


def _is_of_class(annotation: Any) -> bool:
    """Whether it is a ClassVar, as a text or as an object."""
    if isinstance(annotation, str):
        return annotation.removeprefix("typing.").startswith("ClassVar")
    return annotation is ClassVar or getattr(annotation, "__origin__", None) is ClassVar


def _is_other(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return any(kind in annotation for kind in OTHER_KINDS)
    kinds = (dataclasses.InitVar, dataclasses.KW_ONLY)
    return annotation in kinds or isinstance(annotation, dataclasses.InitVar)


def _set_default(cls: type, name: str, field: "dataclasses.Field[Any]") -> None:
    """The class attribute of a field: its default, or nothing."""
    if field.default is dataclasses.MISSING:
        delattr(cls, name)
    else:
        setattr(cls, name, field.default)


def _recipe(cls: type) -> Recipe | None:
    """The nearest recipe of a class and its bases."""
    found: Recipe | None = getattr(cls, RECIPE, None)
    return found


class _OnUse:
    """A class attribute that is made when somebody looks at it, and takes this one's place."""

    __slots__ = ("_make", "_name", "_recipe")

    def __init__(self, recipe: Recipe, name: str, make: Callable[[Recipe, str], Any]) -> None:
        self._recipe, self._name, self._make = recipe, name, make

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        made = self._make(self._recipe, self._name)
        setattr(self._recipe.cls, self._name, made)
        return made.__get__(instance, owner) if hasattr(made, "__get__") else made


def _methods(recipe: Recipe, explicit: Any) -> dict[str, Callable[[Recipe, str], Any]]:
    """The attributes that the decorator gives a class, and who makes each."""
    made: dict[str, Callable[[Recipe, str], Any]] = {
        "__dataclass_fields__": _of_twin,
        "__dataclass_params__": _params,
        "__match_args__": _of_twin,
        "__init__": _init,
    }
    if recipe.setting("repr"):
        made["__repr__"] = _repr
    if recipe.setting("eq"):
        made["__eq__"] = _eq
        has_hash = explicit.get("__hash__") is not None
        if recipe.setting("frozen") and not has_hash:
            made["__hash__"] = _hash
    if recipe.setting("order"):
        made |= dict.fromkeys(ORDER, _order)
    kept = {name for name in made if name in explicit and name != "__hash__"}
    return {name: make for name, make in made.items() if name not in kept}


def _of_twin(recipe: Recipe, name: str) -> Any:
    return getattr(recipe.twin(), name)


def _params(recipe: Recipe, name: str) -> Any:
    return getattr(dataclasses.dataclass(**recipe.settings)(type(name, (), {})), name)


def _repr(recipe: Recipe, name: str) -> Any:
    return getattr(recipe.twin(repr=True), name)


def _eq(recipe: Recipe, name: str) -> Any:
    return getattr(recipe.twin(eq=True), name)


def _hash(recipe: Recipe, name: str) -> Any:
    return getattr(recipe.twin(unsafe_hash=True), name)


def _order(recipe: Recipe, name: str) -> Any:
    return getattr(recipe.twin(eq=True, order=True), name)


def _init(recipe: Recipe, name: str) -> Any:
    """`__init__` as the standard library writes it; it would compile those of a frozen class with
    two more methods.
    """
    cls = recipe.cls
    fields = recipe.parameters()
    positional = [field.declared for field in fields if not field.kw_only]
    named = [field.declared for field in fields if field.kw_only]
    declared = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    store = "_set(self, {0!r}, {1})" if recipe.setting("frozen") else "self.{0} = {1}"
    body = [store.format(field.name, field.value) for field in fields]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n ".join(body or ["pass"])
    scope = {"_set": object.__setattr__, "_FACTORY": _FACTORY, "__name__": cls.__module__}
    scope |= {f"_default_{field.name}": field.default for field in fields}
    scope |= {f"_factory_{field.name}": field.factory for field in fields}
    exec(f"def __init__({declared}):\n {lines}", scope)
    made: Any = scope[name]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return made


class Parameter:
    """A field as `__init__` takes it."""

    def __init__(self, name: str, annotation: Any, default: Any, kw_only: bool) -> None:
        self.name, self.type, self.kw_only = name, annotation, kw_only
        self.default = default
        self.factory: Any = dataclasses.MISSING
        if isinstance(default, dataclasses.Field):
            _refuse_mutable(name, default.default)
            self.default, self.factory = default.default, default.default_factory
            if default.kw_only is not dataclasses.MISSING:
                self.kw_only = default.kw_only
        else:
            _refuse_mutable(name, default)

    @property
    def declared(self) -> str:
        """The parameter with its default."""
        if self.default is not dataclasses.MISSING:
            return f"{self.name}=_default_{self.name}"
        has_factory = self.factory is not dataclasses.MISSING
        return f"{self.name}=_FACTORY" if has_factory else self.name

    @property
    def value(self) -> str:
        """What the object gets."""
        if self.factory is dataclasses.MISSING:
            return self.name
        return f"_factory_{self.name}() if {self.name} is _FACTORY else {self.name}"


def _refuse_mutable(name: str, default: Any) -> None:
    if default.__class__.__hash__ is None:
        raise ValueError(
            f"mutable default {type(default)} for field {name} is not allowed: use default_factory"
        )


def _freeze(cls: type, recipe: Recipe) -> None:
    """Assignments and deletions raise, as they do in frozen classes of the standard library."""

    made: Any = cls

    def refuse(what: str, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in recipe.names():
            refuse("assign to", name)
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in recipe.names():
            refuse("delete", name)
        super(made, self).__delattr__(name)

    for method in (__setattr__, __delattr__):
        if method.__name__ in cls.__dict__:
            raise TypeError(f"Cannot overwrite attribute {method.__name__} in class {cls.__name__}")
        method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
        setattr(cls, method.__name__, method)
