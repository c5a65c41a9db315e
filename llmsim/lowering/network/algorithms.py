"""The algorithm of each kind of collective, as options name it and as the engine knows it."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from llmsim._native import engine
from llmsim.config import EngineArgs
from llmsim.config.errors import InputError
from llmsim.model.operator import CollectiveKind

KINDS: "dict[CollectiveKind, engine.CollectiveKind]" = {
    "all_reduce": engine.CollectiveKind.ALL_REDUCE,
    "all_gather": engine.CollectiveKind.ALL_GATHER,
    "reduce_scatter": engine.CollectiveKind.REDUCE_SCATTER,
    "all_to_all": engine.CollectiveKind.ALL_TO_ALL,
}
"""The collectives whose algorithm an option names."""
RING = engine.AlgorithmChoice.parse("ring")


def described(choice: "engine.AlgorithmChoice") -> str:
    """The algorithm as sources of costs name it."""
    limit = f" with {choice.window} messages in flight" if choice.window else ""
    return f"{choice.name}{limit}"


def is_ring(choice: "engine.AlgorithmChoice") -> bool:
    """Whether each rank sends to the next one alone."""
    return bool(choice.algorithm == engine.Algorithm.RING)


class Algorithms(Struct, frozen=True, eq=False):
    """The algorithms of a group's collectives, by kind and dimension of the network."""

    choices: "Mapping[CollectiveKind, tuple[engine.AlgorithmChoice, ...]]" = field(
        default_factory=dict
    )

    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same as options name them."""

    def of(self, kind: CollectiveKind, dimension: int) -> "engine.AlgorithmChoice":
        """The algorithm in a dimension; the last one given stands for all dimensions behind it."""
        given = self.choices.get(kind, (RING,))
        return given[min(dimension, len(given) - 1)]

    def names(self, kind: CollectiveKind) -> bool:
        """Whether an option says by which algorithm this kind of collective runs."""
        return kind in self.choices

    @property
    def all_rings(self) -> bool:
        """Whether every collective is a ring."""
        return all(is_ring(choice) for given in self.choices.values() for choice in given)

    @property
    def in_step(self) -> bool:
        """Whether ranks that start a collective together end it together, on equal links."""
        return all(choice.in_step for given in self.choices.values() for choice in given)

    @property
    def fan_out(self) -> bool:
        """Whether a rank sends to all others at once."""
        direct = engine.Algorithm.DIRECT
        return any(one.algorithm == direct for given in self.choices.values() for one in given)

    @property
    def on_switch(self) -> bool:
        """Whether a collective is computed by a switch."""
        return any(choice.on_switch for given in self.choices.values() for choice in given)


def algorithms_of(args: EngineArgs) -> Algorithms:
    """The algorithms that the options of a group name.

    InputError, naming the option, for an unknown algorithm, and for one that has no messages for
    the kind of collective.
    """
    choices: dict[CollectiveKind, tuple[engine.AlgorithmChoice, ...]] = {}
    words: dict[str, tuple[str, ...]] = {}
    for kind, native in KINDS.items():
        option = f"{kind}_implementation"
        text: str | None = getattr(args, option)
        if text is None:
            continue
        words[kind] = tuple(word.strip() for word in text.split(","))
        choices[kind] = tuple(parsed_algorithm(option, word, native) for word in words[kind])
    return Algorithms(MappingProxyType(choices), MappingProxyType(words))


def parsed_algorithm(
    option: str, word: str, kind: "engine.CollectiveKind"
) -> "engine.AlgorithmChoice":
    """InputError, naming the option, where there is no such algorithm of this collective."""
    try:
        choice = engine.AlgorithmChoice.parse(word)
    except ValueError as error:
        raise InputError(f"{option} {error}") from None
    if not choice.can(kind):
        words = engine.algorithm_words()
        able = [name for name in words if engine.AlgorithmChoice.parse(name).can(kind)]
        raise InputError(
            f'{option} is "{word}", which has no messages for this collective; one of '
            f"{', '.join(able)} was expected"
        )
    return choice
