"""The cost source that reads tables of hardware simulators."""
