"""Rules of a family's description: how a shape or a switch is found in a config.json.

A rule is a constant, the name of a config field, a multiple of one ("4 * hidden_size"), or
`{"field": rule}`, which holds where that field is true (`{"field=word": rule}`: is that word); or a
list of these, of which the first counts whose field is there, with a constant last as the default:
`["intermediate_size", "ffn_dim"]`, `["attention_bias", false]`.
"""

from typing import NamedTuple

from llmsim.config.errors import NotYetError
from llmsim.model.families.fields import MAX_COUNT, Reader, shown

Plain = bool | int | str
Choice = Plain | dict[str, Plain | list[Plain]]
Rule = Choice | list[Choice]


class Found(NamedTuple):
    """Where a rule leads: to a config field, times a factor, or (`field` None) to a constant."""

    field: str | None
    factor: int = 1
    constant: bool | int | None = None


class Rules:
    """Evaluates the rules of a family on one config; errors name the config's field. Read only."""

    def __init__(self, read: Reader) -> None:
        self.read = read

    def count(self, rule: Rule, *, most: int = MAX_COUNT) -> int:
        """An integer of at least 1, or the rule's constant."""
        found = self._find(rule)
        if found.field is None:
            return int(found.constant or 0)
        return found.factor * self._alike(found.field).count(found.field, most=most)

    def optional(self, rule: Rule) -> int:
        """An integer that may be 0, absent or null; those are 0."""
        found = self._find(rule)
        if found.field is None:
            return int(found.constant or 0)
        read = self._alike(found.field)
        return found.factor * read.count(found.field) if read.fields.get(found.field) else 0

    def zero(self, rule: Rule) -> bool:
        """Whether the config or the rule's constant says 0: none of what the rule counts."""
        found = self._find(rule)
        return (found.constant if found.field is None else self.read.fields.get(found.field)) == 0

    def flag(self, rule: Rule) -> bool:
        """A boolean."""
        found = self._find(rule)
        return bool(found.constant) if found.field is None else self.read.flag(found.field, False)

    def expects(self, field: str, rule: Rule, path: str) -> None:
        """NotYetError where the config has another value in the field than the
        description is for.
        """
        if not self.read.present(field):
            return
        found, value = self._find(rule), self.read.fields[field]
        wanted = found.constant if found.field is None else self.read.fields.get(found.field)
        if value != wanted:
            raise NotYetError(
                f'{self.read.source}: field "{field}" is {shown(value)}; {path} describes models '
                f"with {shown(wanted)}"
            )

    def _find(self, rule: Rule) -> Found:
        """The first choice that holds; the first field when none does, so that errors
        can name it.
        """
        choices = rule if isinstance(rule, list) else [rule]
        missing: Found | None = None
        for choice in choices:
            if isinstance(choice, dict):
                for flag, then in choice.items():
                    if self._holds(flag):
                        return self._find(list(then) if isinstance(then, list) else then)
            elif isinstance(choice, str):
                factor, _, field = choice.rpartition(" * ")
                found = Found(field, int(factor or 1))
                if self.read.present(field):
                    return found
                missing = missing or found
            else:
                return Found(None, constant=choice)
        return missing or Found(None, constant=0)

    def _holds(self, condition: str) -> bool:
        field, _, wanted = condition.partition("=")
        return self.read.fields.get(field) == wanted if wanted else self.read.flag(field, False)

    def _alike(self, field: str) -> Reader:
        """The config with one number for a list that has the same for every layer; NotYetError
        where it has others.
        """
        value = self.read.fields.get(field)
        if not isinstance(value, list) or not value:
            return self.read
        if any(one != value[0] for one in value):
            raise NotYetError(
                f'{self.read.source}: field "{field}" is {shown(value)}; layers of different '
                "shapes are not described"
            )
        return Reader({**self.read.fields, field: value[0]}, self.read.source)
