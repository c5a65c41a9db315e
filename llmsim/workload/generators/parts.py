"""What every generator needs: its settings, its random streams, and the way from columns to a
Workload.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import PS_PER_MS, PS_PER_NS, Int64, UInt64, Workload
from llmsim.workload.columns import next_calls
from llmsim.workload.limits import MAX_REQUESTS, MAX_TIME_NS, MAX_TOKENS
from llmsim.workload.models import ModelNames
from llmsim.workload.spec_text import Field, parse_arrivals, parse_lengths
from llmsim.workload.synthetic.distributions import Arrivals, Lengths


class Parts:
    """Settings by key, with defaults as the texts that a user would write; every quantity draws
    from a stream of its own.
    """

    def __init__(
        self, text: str, given: Mapping[str, str], known_models: Sequence[str], granularity: int
    ) -> None:
        self.text, self.granularity = text, granularity
        self._given, self._models = given, ModelNames(known_models)
        self._seed = self.integer("seed", "0", 0, (1 << 63) - 1)

    def _field(self, key: str, default: str | None) -> Field:
        return Field(self.text, key, self._given.get(key, default or ""))

    def given(self, *keys: str) -> list[str]:
        """Those of these keys that the specification gives."""
        return [key for key in keys if key in self._given]

    def word(self, key: str, default: str) -> str:
        """The text of a key as it stands."""
        return self._given.get(key, default)

    def integer(self, key: str, default: str | None, low: int, high: int = MAX_REQUESTS) -> int:
        return self._field(key, default).alone_integer(low, high)

    def number(
        self, key: str, default: str | None, *, least: float = 0.0, most: float = 1e12
    ) -> float:
        field = self._field(key, default)
        field.take_word()
        value = field.positive("", least=least, most=most)
        field.done()
        return value

    def lengths(self, key: str, default: str | None, smallest: int = 1) -> Lengths:
        return parse_lengths(self._field(key, default), smallest)

    def arrivals(self) -> Arrivals:
        return parse_arrivals(
            self.text,
            {key: self._field(key, None) for key in ("rate", "arrivals") if key in self._given},
        )

    def stream(self, index: int) -> Generator:
        """The random stream of quantity `index` of this seed."""
        return Generator(PCG64(SeedSequence(self._seed, spawn_key=(index,))))

    def workload(
        self,
        arrival_ns: Int64,
        input_tokens: Int64,
        output_tokens: Int64,
        content: tuple[Int64, UInt64] | None,
        *,
        granularity: int | None = None,
        tool_ms: Int64 | None = None,
        session_id: list[str] | None = None,
        hidden: NDArray[np.bool_] | None = None,
    ) -> Workload:
        """The workload of columns in order of arrival (-1: continues the row before). Raises
        InputError where a time or a prompt leaves the range that a trace may use.
        """
        latest, longest = int(arrival_ns.max(initial=0)), int(input_tokens.max(initial=0))
        if latest > MAX_TIME_NS or int(arrival_ns.min(initial=0)) < -1:
            raise InputError(
                f"{self.text}: the last request would arrive beyond the 53 days that a run can last"
            )
        if longest > MAX_TOKENS:
            raise InputError(
                f"{self.text}: a prompt would have {longest} tokens, but at most {MAX_TOKENS} "
                "are possible"
            )
        n = len(arrival_ns)
        following = next_calls(arrival_ns)
        offsets, keys = content or (np.zeros(n + 1, dtype=np.int64), np.zeros(0, dtype=np.uint64))
        return Workload(
            arrival_ps=np.where(arrival_ns < 0, -1, arrival_ns * PS_PER_NS),
            input_tokens=input_tokens.astype(np.int32),
            output_tokens=output_tokens.astype(np.int32),
            model=np.full(n, self._models.unnamed(self.text), dtype=np.int16),
            models=tuple(self._models.names),
            next_call=following,
            tool_delay_ps=np.where(following >= 0, 0 if tool_ms is None else tool_ms, 0)
            * PS_PER_MS,
            key_offsets=offsets,
            keys=keys,
            granularity=self.granularity if granularity is None else granularity,
            source=self.text,
            session_id=session_id,
            hidden=hidden,
            extends=None if hidden is None else arrival_ns < 0,
        )
