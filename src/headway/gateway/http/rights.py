"""What a tenant's key may ask for: answers that count as the tenant's, and what the gateway knows of those."""

from __future__ import annotations

from headway.gateway.book.explain import EXPLAIN_PATHS
from headway.gateway.http.api import APIS
from headway.gateway.http.refusal import Refusal
from headway.gateway.request.stored_responses import response_of_path

_WITHOUT_TOKENS = frozenset(
    {
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/tokenize",
        "/detokenize",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/completions/render",
        "/v1/completions/derender",
        "/v1/chat/completions/render",
        "/v1/chat/completions/derender",
        "/v1/responses/render",
        "/version",
        "/v1/models",
        "/openapi.json",
    }
)
"""Paths that generate nothing, and whose answers are the same for all tenants."""


def check_key(path: str, key_tenant: str) -> None:
    """Raise Refusal (403) where a tenant's key asks for what is not the tenant's own.

    The list names what is allowed: vLLM has several paths to most of its functions, and instances may have all of
    them under a `--root-path` once more. Figures of all tenants (`/metrics`, `/dashboard`, `/shadow`) are not on it.
    """
    explained = any(path == each or path.startswith(f"{each}/") for each in EXPLAIN_PATHS)
    if not key_tenant or path in APIS or path in _WITHOUT_TOKENS or explained:
        return
    if response_of_path(path) is not None:
        return
    raise Refusal(
        403,
        "tenants_key",
        f"the key is a tenant's, and {path[:80]!r} concerns all tenants, or counts for none; accepted: "
        f"{', '.join(sorted(APIS))}, /explain, what is asked about texts, or a key without a tenant",
    )
