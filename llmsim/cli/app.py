"""The command tree: `llmsim run`, `llmsim conformance ...`, `llmsim schema`."""

import typer

from llmsim.cli import conformance, run, schema

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


def _new(help_text: str) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # panels cut long option names at 80 columns
        context_settings=SETTINGS,
    )


app = _new("Simulates LLM serving clusters, without a GPU.")
app.command("run", help=run.HELP)(run.command)
app.command("schema", help=schema.HELP)(schema.command)
_conformance = _new("Compares the schedulers with recordings of the real ones.")
_conformance.command("schedules", help=conformance.SCHEDULES_HELP)(conformance.schedules)
_conformance.command("vllm", help=conformance.VLLM_HELP)(conformance.vllm)
app.add_typer(_conformance, name="conformance")

run_app = _new(run.HELP)
run_app.command(help=run.HELP)(run.command)
