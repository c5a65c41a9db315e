"""`llmsim init`: a commented cluster file that runs."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmsim.cli.commands.files.cluster import Dp, Ep, Node, Pp, Tp, WholeExperts
from llmsim.cli.run.command_line import given_path
from llmsim.config.errors import DoesNotFit, InfeasibleError, InputError

if TYPE_CHECKING:
    from llmsim.api.cluster import Cluster

HELP = (
    "Write a commented cluster file that runs as it is: N instances of a model on a device, or "
    "prefill and decode instances, or attention and FFN instances. On a terminal the "
    "command asks for what is missing."
)

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Writes this file (.json or .yaml, with comments).",
        parser=given_path,
        metavar="<path>",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Names a bundled model, or the path of a config.json.", show_default=False
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="Names a device, or the path of its data sheet.", show_default=False
    ),
]
Instances = Annotated[
    int | None,
    typer.Option(
        "--instances", "-n", min=1, max=1 << 16, help="Sets the number of instances.",
        show_default="1",
    ),
]  # fmt: skip
Prefill = Annotated[
    int,
    typer.Option("--prefill", min=0, max=1 << 16, help="Sets the number of prefill instances."),
]
Decode = Annotated[
    int, typer.Option("--decode", min=0, max=1 << 16, help="Sets the number of decode instances.")
]
PrefillTp = Annotated[
    int | None,
    typer.Option(
        "--prefill-tp",
        min=1,
        help="Sets the tensor-parallel devices of a prefill instance.",
        show_default="as --tp",
    ),
]
DecodeTp = Annotated[
    int | None,
    typer.Option(
        "--decode-tp",
        min=1,
        help="Sets the tensor-parallel devices of a decode instance.",
        show_default="as --tp",
    ),
]
Attention = Annotated[
    int,
    typer.Option(
        "--attention", min=0, max=1 << 16, help="Sets the number of attention instances (AFD)."
    ),
]
Ffn = Annotated[
    int,
    typer.Option("--ffn", min=0, max=1 << 16, help="Sets the number of FFN instances (AFD)."),
]
Force = Annotated[bool, typer.Option("--force", help="Replaces a file that exists.")]


def command(
    output: Output = None,
    model: Model = None,
    device: Device = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = None,
    enable_expert_parallel: WholeExperts = False,
    dp: Dp = 1,
    instances: Instances = None,
    prefill: Prefill = 0,
    decode: Decode = 0,
    prefill_tp: PrefillTp = None,
    decode_tp: DecodeTp = None,
    attention: Attention = 0,
    ffn: Ffn = 0,
    devices_per_node: Node = 8,
    force: Force = False,
) -> None:
    """Checks, asks where a person is there, and writes; raises InputError."""
    from llmsim.api.cluster import Cluster
    from llmsim.api.commented import commented
    from llmsim.config.cluster_file.yaml_text import is_yaml
    from llmsim.export.files import CLUSTER_ENDINGS, atomic_writer, check_ending, check_writable

    roles = {"prefill": prefill, "decode": decode, "attention": attention, "ffn": ffn}
    own_tp = {"prefill": prefill_tp, "decode": decode_tp}
    _check_roles(instances, roles, own_tp)
    model = model or _asked("--model", "Model (such as meta-llama/Llama-3.1-8B)")
    device = device or _asked("--device", "Device (such as H100)")
    path = output or Path(_asked("--output", "File to write (such as cluster.json)"))
    if path.exists() and not path.is_dir() and not force:
        raise InputError(
            f"{path} exists; name another file, or give --force to replace it", file=str(path)
        )
    cluster = Cluster.build(
        model,
        device,
        tp=tp,
        pp=pp,
        ep=ep,
        enable_expert_parallel=enable_expert_parallel,
        dp=dp,
        instances=instances or 1,
        prefill_tp=prefill_tp,
        decode_tp=decode_tp,
        devices_per_node=devices_per_node,
        **roles,
    )
    own = [f"--{name}-tp" for name, size in own_tp.items() if size is not None]
    _check_that_it_fits(cluster, " or ".join(own or ["--tp"]))
    text = commented(cluster, yaml=is_yaml(path.name))
    check_ending("--output", path, CLUSTER_ENDINGS)
    check_writable(path)
    with atomic_writer(path) as stream:
        stream.write(text)
    print(f"{path}: {cluster.fields()['description'].split('. ')[0]}")
    load = "synthetic:n=100,rate=1,input=fixed:500,output=fixed:100"
    print(f"llmsim run --cluster-config {path} --dataset {load}")


def _check_roles(
    instances: int | None, roles: Mapping[str, int], own_tp: Mapping[str, int | None]
) -> None:
    """Raises InputError for instances beside roles, and for the size of a role that nobody has."""
    if instances is not None and any(roles.values()):
        given = " and ".join(f"--{name} {count}" for name, count in roles.items() if count)
        raise InputError(
            f"--instances is {instances} beside {given}; give --instances alone, or the roles",
            field="--instances",
            value=instances,
        )
    for name, size in own_tp.items():
        if size is not None and not roles[name]:
            raise InputError(
                f"--{name}-tp is {size}, but there is no --{name}; give the number of {name} "
                "instances, or leave it out",
                field=f"--{name}-tp",
                value=size,
            )


def _check_that_it_fits(cluster: "Cluster", tp: str) -> None:
    """Raises DoesNotFit, with options that would do, where a model does not fit its devices; `tp`
    names the option of its tensor-parallel devices.
    """
    from llmsim.api.checked.given import Given
    from llmsim.api.checked.run_options import checked
    from llmsim.api.preparation.prepare import compile_cluster

    given = Given(Path(cluster.name), "workload", engine_options={}, cost_source="roofline")
    try:
        compile_cluster(cluster.parsed(), checked(given))
    except DoesNotFit as error:
        if error.wider is None:
            raise
        options = " ".join(error.wider.worded(tp, "--pp", "--ep"))
        raise InfeasibleError(error.with_remedy(options)) from None


def _asked(option: str, question: str) -> str:
    """What a person answers; InputError where nobody is there."""
    if not sys.stdin.isatty():
        raise InputError(f"{option} is missing (see llmsim init --help)", field=option)
    answer: str = typer.prompt(question)
    return answer
