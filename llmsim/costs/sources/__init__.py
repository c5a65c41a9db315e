"""Cost sources: profile bundles, silicon database, external simulators, rooflines, plug-ins."""
