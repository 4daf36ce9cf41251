"""What a tenant's key may ask for: answers that count as the tenant's. Instances are everybody's."""

from __future__ import annotations

from headway.gateway.api import APIS
from headway.gateway.refusal import Refusal
from headway.gateway.stored_responses import response_of_path

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
    }
)
"""Paths of vLLM's that generate nothing, so that it is no matter in whose name."""


def check_key(path: str, key_tenant: str) -> None:
    """Raise Refusal (403) where a tenant's key asks for something that is not the gateway's own page.

    Named is what may be asked, and not what may not: vLLM has several doors to most rooms, and instances may have all
    of them under a `--root-path` once more.
    """
    if not key_tenant or path in APIS or path in _WITHOUT_TOKENS or response_of_path(path) is not None:
        return
    raise Refusal(
        403,
        "tenants_key",
        f"the key is a tenant's, and {path[:80]!r} is for all or of nobody's account; accepted: "
        f"{', '.join(sorted(APIS))}, what is asked about texts, or a key without a tenant",
    )
