"""Triggers of a switch between layouts, for properties."""

from hypothesis import strategies as st

WHENS = st.one_of(
    st.builds(lambda s: {"at_s": s}, st.floats(0, 0.8)),
    st.builds(lambda x: {"active_share_below": x}, st.floats(0.05, 0.95)),
    st.builds(lambda n: {"waiting_below": n}, st.integers(1, 20)),
)
