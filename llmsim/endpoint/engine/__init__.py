"""The simulation that an endpoint serves: its clock, its timer, and its streams of tokens."""
