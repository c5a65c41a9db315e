"""Why a run is as slow as it is: blame, causes, and changes that runs have tested."""
