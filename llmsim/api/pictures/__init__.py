"""Pictures of results, drawn with matplotlib."""
