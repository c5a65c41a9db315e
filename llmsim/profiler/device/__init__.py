"""The device under test: its clocks, power, memory and timing."""
