"""Power and energy of nodes, bytes that cost energy, and the cost of a deployment
(docs/explanation/power.md).

Nothing is computed while a run goes on: the loop leaves behind when each group worked and how often
each row of its cost tables was read, and all figures follow from that.
"""

from llmsim.power.account import GroupUse, PowerPlan, account
from llmsim.power.cost import Comparison, CostPlan, Price, carbon_g, compare, cost_figures
from llmsim.power.traffic import Copied, TrafficTable, traffic_table

__all__ = [
    "Comparison",
    "Copied",
    "CostPlan",
    "GroupUse",
    "PowerPlan",
    "Price",
    "TrafficTable",
    "account",
    "carbon_g",
    "compare",
    "cost_figures",
    "traffic_table",
]
