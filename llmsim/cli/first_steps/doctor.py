"""`llmsim doctor`: whether this installation is whole."""

import sys
from typing import Annotated

import typer

HELP = (
    "Check this installation: native module, dependencies, presets, examples, silicon database, "
    "cache and GPU. The exit code is 1 if a check fails."
)
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON instead of lines.")]


def command(as_json: AsJson = False) -> int:
    """Prints every check; returns 1 where one is not well."""
    from llmsim.export.json import json_text
    from llmsim.installation import checks

    found = checks.checks()
    if as_json:
        sys.stdout.write(json_text(checks.as_json(found)))
    else:
        width = max(len(one.name) for one in found)
        for one in found:
            print(f"{'ok ' if one.ok else 'BAD'}  {one.name:{width}}  {one.detail}")
            if one.remedy:
                print(f"     {'':{width}}  remedy: {one.remedy}")
    return 0 if all(one.ok for one in found) else 1
