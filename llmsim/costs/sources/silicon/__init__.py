"""The cost source that reads the silicon database of aiconfigurator-core."""
