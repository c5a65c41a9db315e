"""First steps: they work in any folder, and what cannot be is refused in one sentence."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim import Cluster
from llmsim.cli import main
from llmsim.config import load_cluster, parse_cluster
from llmsim.config.errors import InputError
from llmsim.installation import checks, examples, public_data


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_examples_are_listed_with_files_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["examples"]
    assert all(Path(one["path"]).is_file() and one["what"] for one in found)
    root = examples.folder()
    names = {path.stem for path in (root / "cluster_config").glob("*.json")}
    names |= {path.stem for path in (root / "dataset").glob("*.jsonl")}
    assert {one["name"] for one in found} == names


def test_an_example_runs_by_name_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "run", "h100_llama31_8b.json", "--num-reqs", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 3
    assert "did you mean" in refused(capsys, "examples", "run", "h100_lama31_8b")


def test_a_copied_example_runs_by_the_command_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["examples", "copy", "h100_llama31_8b_pd", "mine"]) == 0
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert main([*command[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 10
    cluster = tmp_path / "mine" / "h100_llama31_8b_pd.json"
    cluster.write_text("{}")
    assert "--force" in refused(capsys, "examples", "copy", "h100_llama31_8b_pd", "mine")
    assert cluster.read_text() == "{}"
    assert main(["examples", "copy", "h100_llama31_8b_pd", "mine", "--force"]) == 0
    assert cluster.read_bytes() == examples.find("h100_llama31_8b_pd").path.read_bytes()


def test_init_refuses_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["init", "-o", "c.json", "--model", "meta-llama/Llama-3.1-70B", "--device", "L40S"]
    assert main(words) == 3
    error = capsys.readouterr().err
    assert "does not fit" in error and "it would fit with --tp 4 or" in error
    assert not Path("c.json").exists()
    assert main([*words, "--tp", "4"]) == 0


def test_init_spreads_a_large_instance_over_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.json"
    words = ["init", "--model", "meta-llama/Llama-3.1-405B", "--device", "H100", "-o", str(path)]
    assert main([*words, "--tp", "8"]) == 3
    assert "it would fit with --tp 16 or" in capsys.readouterr().err
    assert main([*words, "--tp", "16", "--prefill", "1", "--decode", "1"]) == 0
    assert "each on 16 H100 on 2 nodes" in capsys.readouterr().out
    nodes = llmsim.Cluster.load(path).fields()["nodes"]
    roles = [[one["pd_type"] for one in node["instances"]] for node in nodes]
    assert roles == [["prefill"], [], ["decode"], []]
    assert {one["nnodes"] for node in nodes for one in node["instances"]} == {2}
    assert main([*words[:-1], str(tmp_path / "c.yaml"), "--tp", "8", "--pp", "2"]) == 0
    deployment = llmsim.Cluster.load(tmp_path / "c.yaml")
    assert deployment.fields()["nodes"][1]["instances"] == []
    assert main([*words, "--force", "--tp", "1", "--pp", "11"]) == 2
    assert "fills no nodes evenly; lower the first or raise the last" in capsys.readouterr().err


def test_an_installed_package_has_its_own_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkout around it, the package's folder `examples` is taken."""
    package = tmp_path / "site-packages" / "llmsim"
    monkeypatch.setattr(examples, "PACKAGE", package)
    with pytest.raises(InputError, match="install llmsim again"):
        examples.folder()
    (package / "examples" / "cluster_config").mkdir(parents=True)
    (package / "examples" / "cluster_config" / "h100_llama31_8b.json").write_text("{}")
    assert examples.folder() == package / "examples"


def test_the_build_installs_the_examples() -> None:
    rules = (Path(__file__).parents[2] / "CMakeLists.txt").read_text(encoding="utf-8")
    assert "install(DIRECTORY cluster_config dataset DESTINATION llmsim/examples" in rules


def test_a_whole_installation_passes_and_a_defect_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["doctor", "--json"])
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert code == (0 if all(one["ok"] for one in found.values()) else 1)
    needed = ("python", "native module", "dependencies", "presets", "examples", "first run")
    assert all(found[name]["ok"] and not found[name]["remedy"] for name in needed)

    def broken() -> checks.Check:
        raise OSError("the disk is gone")

    monkeypatch.setattr(checks, "_first_run", broken)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "BAD  first run" in shown and "the disk is gone" in shown and "remedy:" in shown


def test_doctor_names_a_dependency_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    version = checks.metadata.version
    monkeypatch.setattr(
        checks.metadata, "version", lambda name: "1.0" if name == "numpy" else version(name)
    )
    check = checks._dependencies()
    assert not check.ok and "numpy is 1.0, at least 1.26" in check.detail and check.remedy


ROLES: list[tuple[list[str], list[str | None]]] = [
    ([], [None]),
    (["--instances", "3", "--tp", "4"], [None] * 3),
    (["--prefill", "1", "--decode", "2"], ["prefill", "decode", "decode"]),
]


@pytest.mark.parametrize(("options", "roles"), ROLES)
def test_init_writes_a_commented_file_that_runs(
    options: list[str], roles: list[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--model", "meta-llama/Llama-3.1-8B", "--device", "H100"]
    assert main(["init", "-o", "c.json", *given, *options]) == 0
    text = Path("c.json").read_text()
    assert text.count("//") > 10
    cluster = load_cluster("c.json")
    assert [one.pd_type for _, one in cluster.instances()] == roles
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert main([*command[1:], "--num-reqs", "2", "--cost-source", "roofline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 2
    tiers = ["--cost-source", "roofline", "--enable-prefix-caching", "--prefix-storage", "CPU"]
    assert main([*command[1:], "--num-reqs", "2", *tiers, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 2
    assert "--force" in refused(capsys, "init", "-o", "c.json", *given)
    assert main(["init", "-o", "c.json", "--force", *given]) == 0


@pytest.mark.parametrize("options", [[], ["--prefill", "1", "--decode", "2"], ["--tp", "2"]])
def test_init_writes_yaml_that_is_the_same_cluster(options: list[str]) -> None:
    given = ["--model", "Qwen/Qwen3-30B-A3B", "--device", "H100", *options]
    for name in ("c.json", "c.yaml"):
        assert main(["init", "-o", name, *given]) == 0
    text = Path("c.yaml").read_text()
    assert text.startswith("# ") and "\n  # max_num_seqs: " in text
    assert load_cluster("c.yaml").plain() == load_cluster("c.json").plain()
    switched_on = text.replace("  # max_num_seqs: ", "  max_num_seqs: ")
    engine = parse_cluster(switched_on, "c.yaml").plain()["engine"]
    assert isinstance(engine["max_num_seqs"], int)


@pytest.mark.parametrize("name", ["c.json", "c.yml"])
@pytest.mark.parametrize("prefill", ["0", "1"])
def test_init_writes_attention_and_ffn_instances(
    name: str, prefill: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--model", "Qwen/Qwen3-30B-A3B", "--device", "H100", "--tp", "2", "--ep", "2"]
    given += ["--attention", "2", "--ffn", "1", "--prefill", prefill]
    assert main(["init", "-o", name, *given]) == 0
    load = "synthetic:n=4,rate=5,input=fixed:60,output=fixed:5"
    capsys.readouterr()
    assert main(["run", "--cluster-config", name, "--dataset", load, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["completed"] == 4 and len(found["kv_cache"]) == 3 + int(prefill)
    for options, said in (
        (["--attention", "1"], "ffn is 0; give both"),
        (["--attention", "1", "--ffn", "1", "--decode", "1"], "decode is 1 beside attention"),
        (["--attention", "1", "--ffn", "1", "--ep", "2"], "ep must divide tp"),
    ):
        error = refused(capsys, "init", "-o", "other.json", *given[:4], *options)
        assert said in error


@pytest.mark.parametrize("name", ["c.json", "c.yaml"])
def test_init_gives_roles_sizes_of_their_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "Qwen/Qwen3-8B", "--device", "H100", "--tp", "2", "--devices-per-node", "8"]
    roles = ["--prefill", "3", "--decode", "1", "--decode-tp", "4"]
    assert main(["init", "-o", name, *given, *roles]) == 0
    assert "3 prefill each on 2 H100, 1 decode each on 4 H100" in capsys.readouterr().out
    nodes = load_cluster(name).plain()["nodes"]
    assert [[one["tp_size"] for one in node["instances"]] for node in nodes] == [[2, 2, 2], [4]]
    load = "synthetic:n=4,rate=5,input=fixed:60,output=fixed:5"
    assert main(["run", "--cluster-config", name, "--dataset", load, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["devices"] for one in found["kv_cache"]] == [2, 2, 2, 4]
    error = refused(capsys, "init", "-o", "d.json", *given, "--decode-tp", "4")
    assert "--decode-tp is 4, but there is no --decode" in error
    wide = ["--model", "meta-llama/Llama-3.1-70B", "--device", "H100", *roles[:4]]
    capsys.readouterr()
    assert main(["init", "-o", "d.json", *wide, "--prefill-tp", "1"]) == 3
    error = capsys.readouterr().err
    assert "it would fit with --prefill-tp" in error and not Path("d.json").exists()


def test_init_takes_vllms_names(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["init", "-o", "c.json", "--force", "--model", "Qwen/Qwen3-30B-A3B", "--device", "H100"]
    sizes = ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"]
    assert main([*given, *sizes, "--enable-expert-parallel"]) == 0
    instance = Cluster.load("c.json").fields()["nodes"][0]["instances"][0]
    assert [instance[name] for name in ("tp_size", "pp_size", "ep_size")] == [2, 2, 2]
    roles = ["--prefill", "1", "--decode", "1", "--prefill-tp", "1", "--decode-tp", "4"]
    assert main([*given, *roles, "--enable_expert_parallel"]) == 0
    instances = Cluster.load("c.json").fields()["nodes"][0]["instances"]
    assert [one["ep_size"] for one in instances] == [1, 4]
    error = refused(capsys, *given, "--enable-expert-parallel", "--tp", "4", "--ep", "2")
    assert "ep is 2 beside enable_expert_parallel" in error and "leave ep out" in error
    dense = ["init", "-o", "d.json", "--model", "Qwen/Qwen3-8B", "--device", "H100"]
    assert "has no experts" in refused(capsys, *dense, "--enable-expert-parallel")


def test_the_commented_options_of_init_are_the_values_that_hold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the comment signs removed the file says the same, so that an editor can begin there."""
    given = ["--model", "Qwen/Qwen3-30B-A3B", "--device", "H200"]
    assert main(["init", "-o", "c.json", *given]) == 0
    lines = Path("c.json").read_text().splitlines()
    told = [
        line.replace("// ", "", 1) if line.lstrip().startswith('// "') else line for line in lines
    ]
    Path("d.json").write_text("\n".join(told))
    values = []
    for name in ("c.json", "d.json"):
        capsys.readouterr()
        assert main(["config", "explain", name, "--json"]) == 0
        fields = json.loads(capsys.readouterr().out)["fields"]
        values.append({one["field"]: one["value"] for one in fields})
    untouched, told_all = values
    assert {name: told_all.get(name) for name in untouched} == untouched


def test_init_refuses_what_contradicts_and_asks_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model is missing" in refused(capsys, "init", "-o", "c.json", "--device", "H100")
    given = ["--model", "Qwen/Qwen3-8B", "--device", "H100"]
    both = [*given, "--instances", "2", "--prefill", "1", "--decode", "1"]
    assert "--instances is 2" in refused(capsys, "init", "-o", "c.json", *both)
    assert "give both" in refused(capsys, "init", "-o", "c.json", *given, "--prefill", "1")
    assert not Path("c.json").exists()


def test_comments_keep_every_position_of_an_error() -> None:
    text = '// one\n{ "link_bw": 1, /* two\n lines */ "link_latency": 1,\n "nodes": "a // b" }'
    with pytest.raises(InputError, match=r"c\.json:4: nodes"):
        parse_cluster(text, "c.json")
    with pytest.raises(InputError, match=r"c\.json:2:3"):
        parse_cluster("// one\n{ nodes: 1 }", "c.json")


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["config", "explain", *words, "--json"]) == 0
    return {one["field"]: one for one in json.loads(capsys.readouterr().out)["fields"]}


@pytest.mark.parametrize(
    ("model", "option", "value", "why"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "block_size", 64, "sparse latent attention"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "enable_prefix_caching", False, "states"),
    ],
)
def test_explain_has_what_the_engine_derives_from_its_model(
    capsys: pytest.CaptureFixture[str], model: str, option: str, value: Any, why: str
) -> None:
    """As the run has it, and not what the profile alone says."""
    assert main(["cluster", model, "H200", "--tp", "8", "--output", "d.json"]) == 0
    found = explained(capsys, "d.json")[f"nodes[0].instances[0].{option}"]
    assert found["value"] == value
    assert why in found["why"]


def test_explain_says_where_every_value_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.json").write_text(
        """{
 "link_bw": 450, "link_latency": 1000,
 "engine": {"max_num_seqs": 64, "api_latency_ns": 5},
 "nodes": [{"instances": [{"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100",
   "tp_size": 2, "block_size": 32},
  {"model_name": "meta-llama/Llama-3.1-8B", "hardware": "H100"}]}]}"""
    )
    found = explained(capsys, "c.json")
    why = {name: (one["value"], one["why"]) for name, one in found.items()}
    first, second = "nodes[0].instances[0]", "nodes[0].instances[1]"
    assert why["link_bw"] == ([450.0], "cluster file, line 2")
    assert why[f"{first}.max_num_seqs"] == (64, "cluster file, line 3")
    assert why[f"{first}.api_latency_ps"] == (5000, "cluster file, line 3")
    assert why[f"{first}.block_size"] == (32, "cluster file, line 5")
    assert why[f"{first}.tp_size"] == (2, "cluster file, line 5")
    assert why[f"{second}.tp_size"] == (1, "default")
    assert why[f"{second}.npu_mem.mem_size"] == (79.1884765625, "data sheet of H100")
    assert why[f"{second}.max_num_batched_tokens"][1].startswith("engine profile")
    below = explained(capsys, "c.json", "--field", first)
    assert below == {name: one for name, one in found.items() if name.startswith(first)}
    assert list(explained(capsys, "c.json", "--field", "engine")) == [
        "engine.max_num_seqs",
        "engine.api_latency_ns",
    ]
    error = refused(capsys, "config", "explain", "c.json", "--field", "engine.block_size")
    assert f'(did you mean "{first}.block_size"?)' in error
    error = refused(capsys, "config", "explain", "c.json", "--field", f"{first}.max_num_seq")
    assert f'did you mean "{first}.max_num_seqs"' in error


def test_explain_has_what_the_file_says_of_hosts_and_roles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--model", "Qwen/Qwen3-30B-A3B", "--device", "H100"]
    assert main(["init", "-o", "c.yaml", *given, "--attention", "1", "--ffn", "2"]) == 0
    lines = Path("c.yaml").read_text().splitlines()
    found = explained(capsys, "c.yaml")
    for field, value in (("pd_type", "attention"), ("afd_group", None), ("attn_tp_size", None)):
        one = found[f"nodes[0].instances[0].{field}"]
        line = lines[int(one["why"].removeprefix("cluster file, line ")) - 1]
        assert field in line and str(one["value"]) in line
        assert value in (None, one["value"])
    Path("d.json").write_text(
        """{"link_bw": 450, "link_latency": 1000, "grid_gco2_per_kwh": 300, "nodes": [{
 "cpu_mem": {"mem_size": 512, "mem_bw": 300},
 "power": {"base_node_power": 60, "npu": {"H100": {
  "idle_power": 70, "standby_power": 100, "active_power": 700, "standby_duration": 1}}},
 "instances": [{"model_name": "Qwen/Qwen3-8B", "hardware": "H100",
  "price_per_device_hour": 2.5}]}]}"""
    )
    why = {name: (one["value"], one["why"]) for name, one in explained(capsys, "d.json").items()}
    assert why["grid_gco2_per_kwh"] == (300.0, "cluster file, line 1")
    assert why["nodes[0].cpu_mem.mem_size"] == (512.0, "cluster file, line 2")
    assert why["nodes[0].cpu_mem.mem_latency"] == (0.0, "default")
    assert why["nodes[0].power.npu.H100.idle_power"] == (70.0, "cluster file, line 4")
    assert why["nodes[0].instances[0].price_per_device_hour"] == (2.5, "cluster file, line 6")


def test_explain_has_the_price_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "Qwen/Qwen3-8B", "--device", "H100"]
    assert main(["init", "-o", "c.json", *given]) == 0
    price = explained(capsys, "c.json")["nodes[0].instances[0].price_per_device_hour"]
    assert price["value"] == 3.99 and price["why"].startswith("list: Lambda")


def test_explain_has_the_lines_of_a_layouts_instances(capsys: pytest.CaptureFixture[str]) -> None:
    instance = '{"model_name": "Qwen/Qwen3-8B", "hardware": "H100", "tp_size": %d, "count": %d}'
    Path("c.json").write_text(
        f"""{{"link_bw": 450, "link_latency": 1000,
 "node": {{"devices": 2}},
 "layouts": {{
  "wide": [{instance % (2, 1)}],
  "many": [{instance % (1, 2)}]}},
 "switch": [{{"to": "many", "when": {{"at_s": 10}}}}]}}"""
    )
    why = {name: (one["value"], one["why"]) for name, one in explained(capsys, "c.json").items()}
    assert why["nodes[0].instances[0].tp_size"] == (2, "cluster file, line 4")
    assert why["layouts.many[0].count"] == (2, "cluster file, line 5")
    assert why["node.devices"] == (2, "cluster file, line 2")
    assert why["switch[0].when.at_s"] == (10.0, "cluster file, line 6")


def test_every_public_file_has_a_pinned_address_and_a_checksum() -> None:
    for one in public_data.catalogue():
        assert one.url.startswith("https://") and one.bytes > 0 and one.license
        assert len(bytes.fromhex(one.sha256)) == 32
        assert any(len(part) == 40 for part in one.url.split("/")), "pinned by a commit"


def test_a_public_file_is_checked_and_never_half_written(tmp_path: Path) -> None:
    source = tmp_path / "origin.jsonl"
    source.write_bytes(b"{}\n" * 1000)
    known = public_data.catalogue()[0]
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    wanted = replace(known, url=source.as_uri(), sha256=digest, bytes=3000)
    folder = tmp_path / "data"
    path, new = public_data.fetch(wanted, folder)
    assert new and path.read_bytes() == source.read_bytes()
    assert public_data.fetch(wanted, folder) == (path, False)
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match="another content"):
        public_data.fetch(wanted, folder)
    assert path.read_bytes() == b"mine"
    path.unlink()
    with pytest.raises(InputError, match="nothing was written"):
        public_data.fetch(replace(wanted, sha256="0" * 64), folder)
    with pytest.raises(InputError, match="cannot be fetched"):
        public_data.fetch(replace(wanted, url=(tmp_path / "absent").as_uri()), folder)
    assert list(folder.iterdir()) == []


def test_unknown_public_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" in refused(capsys, "data", "fetch", "sharegpt-300-lama")
    assert main(["data", "list"]) == 0
    assert "sharegpt-300-llama" in capsys.readouterr().out
