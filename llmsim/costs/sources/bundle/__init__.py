"""The cost source that reads profile bundles, those of LLMServingSim among them."""
