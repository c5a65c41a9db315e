"""What an installation has: bundled examples, public logs to fetch, and whether it is whole."""
