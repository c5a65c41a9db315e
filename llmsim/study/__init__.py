"""Studies: one question about deployments that several runs answer."""

from llmsim.study import report
from llmsim.study.hetero import Allocation, Outcome, RoleFigures, Row, Study, study
from llmsim.study.hetero_file import HeteroFile, Question, load_hetero

__all__ = [
    "Allocation",
    "HeteroFile",
    "Outcome",
    "Question",
    "RoleFigures",
    "Row",
    "Study",
    "load_hetero",
    "report",
    "study",
]
