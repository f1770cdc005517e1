"""Which paths a model answers, and where its name stands in a request. Pure."""

from __future__ import annotations

BY_BODY = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/moderations",
        "/v1/rerank",
        "/v1/reranking",
        "/v1/responses",
        "/rerank",
        "/reranking",
        "/infill",
        "/completion",
        "/sdapi/v1/txt2img",
        "/sdapi/v1/img2img",
        "/v/chat/completions",
        "/v/completions",
        "/v/embeddings",
        "/v/messages",
        "/v/messages/count_tokens",
        "/v/rerank",
        "/v/reranking",
        "/v/responses",
    }
)
"""Paths of POST whose body names the model, as JSON or as a form."""

FAMILIES_BY_BODY = ("/v1/audio/", "/v1/images/")
"""The same of all paths that begin so."""

BY_QUERY = frozenset({"/v1/audio/voices", "/v1/realtime", "/sdapi/v1/loras", "/props"})
"""Paths of GET, websockets too, whose query names the model."""

UPSTREAM = "/upstream/"
"""Below it come a model's name and any path of its server."""


def is_by_body(method: str, path: str) -> bool:
    """Whether a request's body names the model that answers it."""
    if method != "POST":
        return False
    return path in BY_BODY or any(path.startswith(one) and path != one for one in FAMILIES_BY_BODY)


def is_by_query(method: str, path: str) -> bool:
    """Whether a request's query does."""
    return method == "GET" and path in BY_QUERY


def seats_path(path: str) -> str:
    """A path as the model's server has it: `/v/…` is for those without versions in their paths."""
    return path.removeprefix("/v") if path.startswith("/v/") else path
