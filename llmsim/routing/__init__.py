"""Request routing: which group serves a request. Native routers by name, and routers written in
Python.
"""

from llmsim.routing.base import GroupView, RequestView, Router
from llmsim.routing.spec import RouterSpec, kept_sessions, parse_router

__all__ = ["GroupView", "RequestView", "Router", "RouterSpec", "kept_sessions", "parse_router"]
