"""An attention instance without requests runs a dummy pass while others run a round."""

import llmsim


def test_idle_attention_instances_break_no_lower_bound() -> None:
    """At ten requests per second one of two attention instances is often without any: its
    dummy pass counted as faster than its device reads all weights, with exit code 4.
    """
    cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "L4", attention=2, ffn=2)
    load = "synthetic:n=60,rate=10,input=lognormal:800,output=lognormal:100,seed=22"
    result = llmsim.run(cluster, load, cost_source="roofline", max_model_len=8192)
    steps = result.steps
    assert ((steps["tokens"] == 0) & (steps["group"] == 0)).any()
    assert result.summary["invariants"]["10 speed of light"] == "ok"
