"""The parser of the programs beside the package (bench, evaluation, dataset): argparse with one
sentence for errors.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from llmsim.config.errors import nearest
from llmsim.config.printing import one_line

_EXPECTED = {"int": "an integer", "float": "a number", "Path": "a path"}


class OneSentenceParser(argparse.ArgumentParser):
    """Names the option, its value and what would have worked; exit code 2, as everywhere else."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{
                "formatter_class": argparse.RawDescriptionHelpFormatter,
                "allow_abbrev": False,
                **settings,
            }
        )

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse's; an unknown option is answered with the nearest one."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            taken = [action for action in self._actions if not action.option_strings]
            if unknown[0].startswith("-"):
                name = unknown[0].partition("=")[0]
                self.error(f"{name} is not an option{nearest(name, known)}")
            takes = (
                " ".join(str(action.metavar or action.dest) for action in taken)
                or "no arguments, only options"
            )
            self.error(f'"{unknown[0]}" is too much: it takes {takes}')
        return found

    def error(self, message: str) -> NoReturn:
        """Prints it without the usage; argparse's own words become ours where they are known."""
        print(
            f"{self.prog}: error: {one_line(_sentence(message))} (see {self.prog} --help)",
            file=sys.stderr,
        )
        sys.exit(2)


def _sentence(message: str) -> str:
    missing = re.match(r"the following arguments are required: (.*)", message)
    if missing:
        return f"{missing[1]} {'are' if ',' in missing[1] else 'is'} missing"
    about = re.match(r"argument (\S+?)(?:/\S+)?: (.*)", message, re.S)
    if about is None:
        return message
    name, said = about.groups()
    if wrong := re.match(r"invalid (\w+) value: '(.*)'", said):
        return f'{name} is "{wrong[2]}"; it must be {_EXPECTED.get(wrong[1], wrong[1])}'
    if wrong := re.match(r"invalid choice: '(.*)' \(choose from (.*)\)", said):
        return f'{name} is "{wrong[1]}"; it may be {wrong[2]}'.replace("'", "")
    if wrong := re.match(r"ignored explicit argument '(.*)'", said):
        return f'{name} takes no value, but "{wrong[1]}" is given; write {name} alone'
    return (
        f"{name} has no value; write one after it"
        if said.startswith("expected")
        else f"{name}: {said}"
    )
