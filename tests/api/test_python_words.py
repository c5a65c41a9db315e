"""Errors of options that came through Python say `max_num_seqs` and carry it as `field`."""

import pickle
from typing import Any

import pytest

import llmsim
from llmsim.api.python_words import in_python_words

LOAD = "synthetic:n=3,rate=2,input=50,output=5,seed=1"
CLUSTER = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_num_seqs": -1}, "max_num_seqs is -1; expected a whole number from 0"),
        ({"max_num_seqs": "many"}, 'max_num_seqs is "many"; expected a whole number'),
        ({"max_num_seqs": 900, "max_num_batched_tokens": 800}, "max_num_seqs is 900, more than"),
        ({"enable_chunked_prefill": "no"}, 'enable_chunked_prefill is "no"'),
        ({"engine_profile": "wllm"}, 'engine_profile: engine profile "wllm" is not known'),
        ({"gpu_memory_utilization": 3}, "gpu_memory_utilization is 3"),
        ({"max_model_len": 10**7}, "max_model_len is 10000000 (option), beyond the model's"),
        ({"speculative_config": "draft"}, "speculative_config is 'draft', which is no JSON"),
        ({"cudagraph_capture_sizes": ["x"]}, "cudagraph_capture_sizes is 'x'"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"cost_source": "rofline"}, 'cost_source is "rofline" (did you mean "roofline"?)'),
        ({"request_routing_policy": "LRO"}, "request_routing_policy"),
        ({"num_reqs": -4}, "num_reqs is -4"),
        ({"horizon": 0}, "horizon is 0"),
        ({"goodput": "ttft"}, "goodput"),
        ({"fp": 16, "dtype": "fp8"}, "fp 16 and dtype fp8 say the same thing twice"),
        ({"profile_dir": "/nowhere"}, 'profile_dir "/nowhere" is not a folder'),
        ({"disable_term": "typo"}, "disable_term"),
        ({"cost_table": "none.csv"}, 'cost_table "none.csv" does not exist'),
        ({"calibration": "none.json"}, "none.json: cannot be read"),
        ({"cache_eviction": "nowhere:Class"}, "cache eviction nowhere:Class: there is no module"),
        ({"queue_order": "a:B", "scheduling_policy": "sjf"}, "queue_order a:B and scheduling_pol"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_the_option_is_named_as_it_was_given(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(llmsim.InputError) as caught:
        llmsim.run(CLUSTER, LOAD, **options)
    said, field = str(caught.value), caught.value.field
    assert sentence in said
    assert "--" not in said and "command line" not in said
    assert field in options
    assert caught.value.value == options[field]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.field, again.value) == (said, field, options[field])


def test_sweeps_say_the_same() -> None:
    with pytest.raises(llmsim.InputError, match=r"^max_num_seqs is -2") as caught:
        llmsim.sweep(CLUSTER, LOAD, {"max_num_seqs": [4, -2]})
    assert (caught.value.field, caught.value.value) == ("max_num_seqs", -2)


def test_command_lines_and_fields_of_files_stay() -> None:
    said = "nodes[0] is wrong; --no-allow-plugins, --output, `llmsim run --seed 1`, --max-batch"
    with pytest.raises(llmsim.InputError) as caught, in_python_words({"seed": 1}):
        raise llmsim.InputError(said, file="c.json", field="nodes[0]", value=3)
    assert str(caught.value) == (
        "nodes[0] is wrong; allow_plugins=False, output, `llmsim run --seed 1`, max_num_seqs"
    )
    error = caught.value
    assert (error.file, error.field, error.value) == ("c.json", "nodes[0]", 3)
