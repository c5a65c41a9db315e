"""The HTTP side of the endpoint: server, routes, checked calls and their answers."""
