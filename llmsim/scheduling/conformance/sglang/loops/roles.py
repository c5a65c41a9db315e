"""Prefill and decode servers of SGLang: their command line and loops."""

from typing import TYPE_CHECKING

from llmsim.scheduling.conformance.cases import Case

if TYPE_CHECKING:
    from llmsim.scheduling.conformance.sglang.live import Loop


def arguments(config: Case) -> list[str]:
    """SGLang's command line for the role of a configuration; empty without one."""
    mode = config.get("disaggregation_mode")
    if mode is None:
        return []
    # The backend is one in whose place is the fake one.
    named = ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", "nixl"]
    if mode == "prefill":
        return named
    named += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
    named += ["--num-reserved-decode-tokens", str(config["num_reserved_decode_tokens"])]
    if config["disaggregation_decode_enable_radix_cache"]:
        named.append("--disaggregation-decode-enable-radix-cache")
    return named


def use_stand_in(config: Case) -> None:
    """From now on SGLang's servers of this role start with a fake backend of transfers."""
    from llmsim.scheduling.conformance.sglang.loops import decode_loop, prefill_loop

    if config["disaggregation_mode"] == "prefill":
        prefill_loop.use_stand_in()
    else:
        decode_loop.use_stand_in(config["clip_max_new_tokens"])


def loop_of(config: Case) -> "type[Loop]":
    """The loop of a server of this role."""
    from llmsim.scheduling.conformance.sglang.loops.decode_loop import DecodeLoop
    from llmsim.scheduling.conformance.sglang.loops.dp_loop import DpDecodeLoop, DpPrefillLoop
    from llmsim.scheduling.conformance.sglang.loops.prefill_loop import PrefillLoop
    from llmsim.scheduling.conformance.sglang.loops.staged_decode_loop import StagedDecodeLoop
    from llmsim.scheduling.conformance.sglang.loops.staged_prefill_loop import StagedPrefillLoop

    computes, has_ranks = config["disaggregation_mode"] == "prefill", config.get("dp_size", 1) > 1
    if has_ranks:
        return DpPrefillLoop if computes else DpDecodeLoop
    if config.get("pp_size", 1) > 1:
        return StagedPrefillLoop if computes else StagedDecodeLoop
    return PrefillLoop if computes else DecodeLoop
