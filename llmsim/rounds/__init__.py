"""The steps of a run, recorded with their batches: which of them become graphs, and their files."""

from llmsim.rounds.recorded import RecordedSteps as RecordedSteps
from llmsim.rounds.recorded import members_of_round as members_of_round
from llmsim.rounds.recorded import recorded_run as recorded_run
from llmsim.rounds.recorded import round_of as round_of
from llmsim.rounds.recorded import steps_until as steps_until
