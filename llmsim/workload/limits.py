"""The ranges that a trace may use, shared by the reader, its error messages and the generators."""

from llmsim.core import MAX_HORIZON_PS, PS_PER_NS

MAX_TOKENS = 1_000_000_000
"""Of one prompt or one answer: two of them still fit the int32 that a sequence's length is kept in.
"""
MAX_REQUESTS = 100_000_000
"""Of one workload."""
MAX_TIME_NS = MAX_HORIZON_PS // PS_PER_NS
MAX_TOKEN_ID = (1 << 31) - 1
MIN_PRIORITY, MAX_PRIORITY = -(1 << 31), (1 << 31) - 1
"""Of a request; a lower number is more urgent."""
MAX_DRAFTS = 64
"""Drafts of one verification."""
MAX_VERIFICATIONS = 1 << 20
"""Recorded verifications of one request."""
MAX_ADAPTER_LETTERS = 256
"""Of the name of a LoRA adapter."""
MAX_ENCODER_INPUTS = 4096
"""Images and other inputs of an encoder in one prompt."""
SLO_CLASS = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
"""Names of classes of requests with latency targets of their own."""
