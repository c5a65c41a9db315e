"""The search for the cheapest deployment that serves a load within its targets."""
