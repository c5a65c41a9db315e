"""Logs of the user's own, whose columns or keys have usual names or names that are given."""
