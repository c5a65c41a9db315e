"""What a client sees of an answer whose tokens take some time beside the engine: results shifted by
it.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from llmsim.core import Int64, Results


def with_output_processing(results: Results, each_ps: int) -> Results:
    """The results as clients see them: token n of an answer is there n x `each_ps` after its step
    (BLIS' alpha2).

    Every inter-token latency grows by `each_ps`, the first token's latency, too; the engine does
    not wait for it, so that steps, series and counters stay. The time is the first part of a
    latency's causes, with the API server's.
    """
    if each_ps == 0:
        return results
    requests = results.requests
    emitted = requests.emitted_tokens.astype(np.int64)
    first, finish = requests.first_token_ps, requests.finish_ps
    more = emitted * each_ps * (finish >= 0)

    def gaps(row: int) -> Int64:
        return np.asarray(results.itl_of(row) + each_ps)

    def to_first_token() -> Mapping[str, Int64]:
        blame = results.first_token_blame()
        return {**blame, "api_ps": blame["api_ps"] + each_ps * (first >= 0)}

    return replace(
        results,
        requests=replace(
            requests,
            first_token_ps=np.where(first >= 0, first + each_ps, first),
            finish_ps=np.where(finish >= 0, finish + more, finish),
        ),
        itl_values_ps=results.itl_values_ps + each_ps,
        itl_of=gaps,
        blame={**results.blame, "api_ps": results.blame["api_ps"] + more},
        first_token_blame=to_first_token,
    )
