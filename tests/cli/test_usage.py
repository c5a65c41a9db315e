"""What the parsers refuse: every verb, every option, one sentence with the option, the value and
what would work.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from llmsim.api.checked.given import Given
from llmsim.cli import main, run_main
from llmsim.cli.app import app
from llmsim.cli.arguments import OneSentenceParser
from llmsim.profiler.cli.command import app as profiler_app
from llmsim.profiler.cli.command import main as profiler_main

ROOT = Path(__file__).resolve().parents[2]


def verbs(of: typer.Typer, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from verbs(group.typer_instance, *names, str(group.name))
    for command in of.registered_commands:
        yield (*names, str(command.name)), command.callback


def kinds(annotation: Any) -> set[Any]:
    """int, float, bool, ... of an annotation, None and the text of typer left out."""
    origin = get_origin(annotation)
    if origin in (UnionType, Union, list):
        return {kind for part in get_args(annotation) for kind in kinds(part)} - {type(None)}
    return kinds(get_args(annotation)[0]) if hasattr(annotation, "__metadata__") else {annotation}


def options(of: typer.Typer, name: tuple[str, ...], callback: Any) -> Iterator[tuple[str, Any]]:
    """(--option, its kinds) of a verb."""
    command: Any = typer.main.get_command(of)
    for word in name:
        command = command.commands[word]
    hints = get_type_hints(Given if name == ("run",) else callback, include_extras=True)
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name in hints:
            yield parameter.opts[0], kinds(hints[parameter.name])


LLMSIM = [(main, "llmsim", *verb) for verb in verbs(app)]
PROFILER = [(profiler_main, "profiler", *verb) for verb in verbs(profiler_app)]
EVERY = pytest.mark.parametrize(
    ("program", "called", "name", "callback"),
    LLMSIM + PROFILER,
    ids=[" ".join((called, *name)) for _, called, name, _ in LLMSIM + PROFILER],
)


def refusal(capsys: pytest.CaptureFixture[str], program: Any, called: str, *words: str) -> str:
    capsys.readouterr()
    assert program(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{called}: error: ") and captured.err.count("\n") == 1
    return captured.err.removeprefix(f"{called}: error: ").strip()


@EVERY
def test_an_unknown_option_is_named_with_the_nearest(
    program: Any,
    called: str,
    name: tuple[str, ...],
    callback: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "allow_extra_args" in str(callback) or name in (
        ("calibrate",),
        ("graph", "step"),
        ("examples", "run"),
        ("serve",),
        ("emulate",),
    ):
        pytest.skip("its options of `run` are checked by `run`")
    said = refusal(capsys, program, called, *name, "--no-such-thing", "3")
    assert said.startswith("--no-such-thing is not an option of ") and said.endswith(
        f"{' '.join(name)} --help)"
    )


@EVERY
def test_every_option_says_what_is_wrong_with_its_value(
    program: Any,
    called: str,
    name: tuple[str, ...],
    callback: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = ["log"] if name == ("calibrate",) else []
    for option, kind in options(app if program is main else profiler_app, name, callback):
        if kind == {bool}:
            said = refusal(capsys, program, called, *name, *first, f"{option}=maybe")
            assert said.startswith(
                f'{option} takes no value, but "maybe" is given; write {option} alone'
            )
            continue
        said = refusal(capsys, program, called, *name, *first, option)
        assert said.startswith(f"{option} has no value; it ")
        assert ", so write one after it (see " in said
        if kind <= {int, float}:
            said = refusal(capsys, program, called, *name, *first, option, "ab c")
            assert said.startswith(
                f'{option} is "ab c"; it must be a{"n integer" if kind == {int} else " number"}'
            )


def test_other_names_ranges_and_words_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    start = ["--cluster-config", "a", "--dataset", "b"]
    assert refusal(capsys, run_main, "llmsim", *start, "--num-req=x").startswith(
        '--num-req is "x"; it must be an integer'
    )
    assert '(did you mean "--num-reqs"?)' in refusal(
        capsys, run_main, "llmsim", *start, "--numreqs", "3"
    )
    said = refusal(capsys, main, "llmsim", "cluster", "some/model", "H100", "-n", "0")
    assert said.startswith('--instances is "0"; it must be') and "1" in said
    said = refusal(capsys, main, "llmsim", "cluster", "some/model", "H100", "more", "words")
    assert said.startswith('"more words" is too much: ') and "takes MODEL HARDWARE" in said
    assert '"more" is too much' in refusal(capsys, run_main, "llmsim", *start, "more")
    said = refusal(capsys, run_main, "llmsim", *start[:2])
    assert said.startswith("--dataset is missing; it names the trace (see ")
    assert refusal(capsys, main, "llmsim", "cluster", "some/model").startswith(
        "HARDWARE is missing; it names a device"
    )


@pytest.mark.parametrize(
    ("words", "known"), [(["rum"], '(did you mean "run"?)'), (["trace", "x"], "inspect")]
)
def test_an_unknown_verb_is_met_with_those_that_exist(
    words: list[str], known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, main, "llmsim", *words)
    assert said.startswith(f'"{words[-1]}" is not a command of ') and known in said


@given(st.text(min_size=1).filter(lambda text: not text.startswith("-")))
def test_any_text_in_place_of_a_number_is_a_number_or_named(text: str) -> None:
    from contextlib import redirect_stderr
    from io import StringIO

    with redirect_stderr(StringIO()) as stream:
        assert run_main(["--cluster-config", "nowhere", "--dataset", "b", "--seed", text]) == 2
    said = stream.getvalue()
    assert said.startswith(("llmsim: error: --seed is ", "llmsim: error: nowhere does not exist"))


def parser() -> OneSentenceParser:
    made = OneSentenceParser(prog="python -m thing")
    made.add_argument("log", type=Path)
    made.add_argument("--repeat", "-r", type=int)
    made.add_argument("--share", type=float)
    made.add_argument("--card", choices=("A100", "H100"))
    made.add_argument("--json", action="store_true")
    return made


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "log is missing"),
        (["a", "--repeat", "x"], '--repeat is "x"; it must be an integer'),
        (["a", "-r", "x"], '--repeat is "x"; it must be an integer'),
        (["a", "--share", "half"], '--share is "half"; it must be a number'),
        (["a", "--card", "H1000"], '--card is "H1000"; it may be A100, H100'),
        (["a", "--repeat"], "--repeat has no value; write one after it"),
        (["a", "--json=3"], '--json takes no value, but "3" is given; write --json alone'),
        (["a", "--repeats", "3"], '--repeats is not an option (did you mean "--repeat"?)'),
        (["a", "b"], '"b" is too much: it takes log'),
    ],
)
def test_programs_beside_the_package_say_it_alike(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == f"python -m thing: error: {sentence} (see python -m thing --help)\n"
    )


def test_a_number_with_a_unit_is_told_the_unit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--cluster-config", "a.json", "--dataset", "b"]
    assert main([*words, "--kv-offloading-size", "64GiB"]) == 2
    sentence = '--kv-offloading-size is "64GiB"; it must be a number, in GB of 2^30 bytes '
    assert sentence in capsys.readouterr().err
    assert main([*words, "--seed", "x"]) == 2
    assert '--seed is "x"; it must be an integer (' in capsys.readouterr().err


def test_all_programs_beside_the_package_use_that_parser() -> None:
    found = [
        str(path.relative_to(ROOT))
        for folder in ("llmsim", "profiler", "bench", "evaluation", "dataset")
        for path in (ROOT / folder).rglob("*.py")
        if "ArgumentParser(" in path.read_text(encoding="utf-8") and path.name != "arguments.py"
    ]
    assert found == [] and issubclass(OneSentenceParser, argparse.ArgumentParser)


def test_one_of_them_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--repeat", "x"], capture_output=True, text=True, cwd=ROOT
    )
    said = (
        'python -m bench: error: --repeat is "x"; it must be an integer (see python -m bench '
        "--help)\n"
    )
    assert (done.returncode, done.stderr, done.stdout) == (2, said, "")


def test_verbs_that_take_the_options_of_a_run_speak_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = [
        "graph",
        "step",
        "--graph",
        str(tmp_path / "g.json"),
        "--cluster-config",
        "a",
        "--dataset",
        "b",
    ]
    for words, said in (
        (["--no-such-thing"], "--no-such-thing is not an option of"),
        (["--seed", "x"], '--seed is "x"'),
    ):
        found = refusal(capsys, main, "llmsim", *start, *words)
        assert found.startswith(said) and found.endswith("(see llmsim run --help)")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--model", "; the cluster file has it as `model_name`; `llmsim init` writes one"),
        ("--tensor-parallel-size", "; the cluster file has it as `tp_size`;"),
        ("--router", '; it is called "--request-routing-policy" here'),
        ("--vllm-version", '; it is called "--engine-profile" here'),
        ("--request-rate", "; the dataset has it, as in synthetic:n=100,rate=10"),
        ("--slo", '; it is called "--goodput" here'),
        ("--kv-offloading-backend", "; only vLLM's native backend is modelled, and \"--kv-off"),
        (
            "--quantization",
            "; the model's config.json has it as `quantization_config`, and \"--dtype",
        ),
        ("--cpu-offload-gb", "; `placement` of an instance keeps weights in host memory"),
        ("--swap-space", '; "--prefix-storage" CPU keeps KV in host memory'),
        ("--kv-transfer-config", '; "--kv-offloading-size" is its OffloadingConnector, and `pd_'),
        ("--num-prompts", '; it is called "--num-reqs" here'),
        ("--enable-lora", '; adapters are those of the trace, and "--max-loras" turns vLLM\'s slo'),
        ("--all2all-backend", "; an instance or `engine` of the cluster file has it as `all2all_b"),
        ("--max-num-seq", ' (did you mean "--max-num-seqs"?)'),
    ],
)
def test_words_of_other_tools_say_where_it_is(
    capsys: pytest.CaptureFixture[str], option: str, said: str
) -> None:
    found = refusal(capsys, main, "llmsim", "run", option, "4")
    assert found.startswith(f"{option} is not an option of ") and f" run{said}" in found


def test_commands_without_a_cluster_name_no_cluster_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "cluster file" not in refusal(capsys, main, "llmsim", "diff", "--tp", "4")


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("--gpu", '; it is called "--device" here (see '),
        ("--max-gpus", '; it is called "--max-devices" here'),
        ("--request-rate", '; it is called "--rate" here'),
        ("--random-input-len", '; it is called "--input" here'),
        ("--osl", '; it is called "--output-tokens" here'),
        ("--goodput", '; it is called "--slo" here'),
        ("--router", ' (did you mean "--rate"?)'),  # size has no router
    ],
)
def test_words_of_other_tools_name_the_option_of_size(
    capsys: pytest.CaptureFixture[str], word: str, place: str
) -> None:
    found = refusal(capsys, main, "llmsim", "size", "--model", "Qwen/Qwen3-8B", word, "1")
    assert found.startswith(f"{word} is not an option of ") and f" size{place}" in found


@pytest.mark.parametrize(
    ("given", "alike"),
    [
        (["--slo", "tpot:1", "--device", "H100", "--device", "L40S"], ["--device", "H100,L40S"]),
        (["--device", "H100", "--slo", "ttft:1", "--slo", "tpot:1"], ["--slo", "ttft:1,tpot:1"]),
    ],
)
def test_options_of_size_that_take_several_values_add_them_up(
    given: list[str], alike: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Targets that no device meets: the answer names all of them, and all devices."""
    others = {"--slo": "tpot:1", "--device": "H100"}
    others.pop(alike[0])
    asked = ["size", "--model", "Qwen/Qwen3-0.6B", "--rate", "1", "--max-devices", "1", "--json"]
    found = []
    for words in (given, [*alike, *(word for pair in others.items() for word in pair)]):
        main([*asked, "--jobs", "1", *words])
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] and found[0]


def test_words_for_commands_lead_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    for word, meant in (("compare", "diff"), ("simulate", "run"), ("repport", "report")):
        assert main([word, "a", "b"]) == 2
        assert f'(did you mean "{meant}"?)' in capsys.readouterr().err


def test_a_file_without_its_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "mine.json", "--seed", "3"]) == 2
    said = capsys.readouterr().err
    assert '"mine.json" has no option before it, so write --cluster-config mine.json' in said
    assert main(["run", "--seed", "3"]) == 2
    assert "has no option before it" not in capsys.readouterr().err
