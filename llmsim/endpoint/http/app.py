"""The routes of the endpoint, as an ASGI application."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmsim.endpoint.http import about, completions, virtual
from llmsim.endpoint.http.calls import Endpoint, Handler, Responder
from llmsim.endpoint.protocol import ApiError


def application(endpoint: Endpoint) -> Starlette:
    """All routes."""
    routes: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/completions", completions.completions),
        ("POST", "/v1/chat/completions", completions.chat_completions),
        ("GET", "/v1/models", about.models),
        ("POST", "/v1/load_lora_adapter", about.load_lora),
        ("POST", "/v1/unload_lora_adapter", about.unload_lora),
        ("POST", "/tokenize", about.tokenize),
        ("POST", "/detokenize", about.detokenize),
        ("GET", "/health", about.health),
        ("GET", "/ping", about.health),
        ("POST", "/ping", about.health),
        ("GET", "/version", about.version),
        ("GET", "/metrics", about.metrics),
        ("GET", "/virtual/time", virtual.time),
        ("POST", "/virtual/join", virtual.join),
        ("POST", "/virtual/sleep", virtual.sleep),
        ("POST", "/virtual/leave", virtual.leave),
    ]
    return Starlette(
        routes=[
            Route(path, Responder(endpoint, handler), methods=[method])
            for method, path, handler in routes
        ],
        exception_handlers={HTTPException: _refused},
    )


def _refused(request: Request, error: Exception) -> Response:
    """The answer where no route takes a path or its method: vLLM's error object, whose type is
    what HTTP calls the status.
    """
    assert isinstance(error, HTTPException)
    said = f"{error.detail}: {request.method} {request.url.path} is no call that this server takes"
    body = ApiError(error.status_code, said, kind=error.detail).body
    return Response(body, error.status_code, error.headers, media_type="application/json")
