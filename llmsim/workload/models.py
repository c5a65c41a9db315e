"""Matches the model a trace line names with the models that the cluster serves."""

from collections.abc import Sequence

from llmsim.config.errors import InputError, nearest


class ModelNames:
    """The models a workload may name; `index` remembers what it has matched.

    With no known models (a trace read outside a cluster) every name is taken as it stands. Several
    known models make a name on every line necessary. `renamed` gives the trace's names others: the
    one of "" stands for all that have none of their own, and for lines without a name.
    """

    def __init__(
        self, known_models: Sequence[str], renamed: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.names = list(dict.fromkeys(known_models))
        self.open = not self.names
        self._renamed = dict(renamed)
        self._everyone = self._renamed.get("")
        self.required = len(self.names) > 1 or self._everyone is not None
        self._matched = {name: index for index, name in enumerate(self.names)}

    def index(self, name: str, where: str) -> int:
        """Position of `name` in `names`: the same text, or an unambiguous case-insensitive match of
        the whole name or of its last path component. Raises InputError that starts with `where`.
        """
        found = self._matched.get(name)
        if found is None:
            wanted = self._renamed.get(name, self._everyone or name)
            found = self._matched[name] = self._match(wanted, where)
        return found

    def _match(self, name: str, where: str) -> int:
        if self.open:
            self.names.append(name)
            return len(self.names) - 1
        wanted = name.lower()
        full = [index for index, known in enumerate(self.names) if known.lower() == wanted]
        tails = [index for index, known in enumerate(self.names) if _tail(known) == _tail(name)]
        candidates = full or (tails if "/" not in name else [])
        if len(candidates) == 1:
            return candidates[0]
        raise self._no_match(name, where, several=bool(candidates))

    def _no_match(self, name: str, where: str, *, several: bool) -> InputError:
        """What to say of a name that fits several models of the cluster, or none."""
        served = ", ".join(f'"{known}"' for known in self.names)
        if several:
            return InputError(
                f'{where}: model "{name}" could be any of {served}; give the full name',
                field="model",
                value=name,
            )
        suggestion = nearest(name, self.names) or _nearest_tail(name, self.names)
        remedy = "" if self.required else "; name it so, or leave the model out"
        return InputError(
            f'{where}: model "{name}" is not served by this cluster{suggestion}; it serves '
            f"{served}{remedy}",
            field="model",
            value=name,
        )

    def unnamed(self, where: str) -> int:
        """-1, the index of a line that names no model, or that of the name for all. Raises
        InputError where the cluster serves several.
        """
        if self._everyone is not None:
            return self.index("", where)
        if self.required:
            served = ", ".join(f'"{known}"' for known in self.names)
            raise InputError(
                f'{where}: "model" is missing, and the cluster serves several: name one of {served}'
            )
        return -1


def _tail(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _nearest_tail(name: str, names: Sequence[str]) -> str:
    by_tail = {_tail(known): known for known in names}
    suggestion = nearest(_tail(name), by_tail)
    for tail, known in by_tail.items():
        if f'"{tail}"' in suggestion:
            return f' (did you mean "{known}"?)'
    return ""
