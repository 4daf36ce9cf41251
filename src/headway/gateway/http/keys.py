"""API keys: which requests are accepted, for which tenant, and what a tenant's key may ask for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from headway.core.hints import MAX_TENANT_CHARACTERS
from headway.errors import ConfigError
from headway.gateway.http.api import APIS, EXPLAIN_PATHS, is_of_batches, response_of_path
from headway.gateway.http.refusal import GatewayError

ENVIRONMENT = "HEADWAY_API_KEYS"
"""Environment variable with keys without tenants, separated by commas or white space."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Accepted keys, each with its tenant (empty: the client names its own). Without keys, every client may ask."""

    tenants: Mapping[bytes, str] = field(default_factory=dict, repr=False)
    _by_digest: Mapping[bytes, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_digest", {_digest(key): name for key, name in self.tenants.items()})

    def __bool__(self) -> bool:
        return bool(self.tenants)

    def tenant_of(self, authorization: bytes) -> str | None:
        """The tenant of the key in an `Authorization` header (a bearer token, or a basic password); None: unknown key.

        Digests are compared, so that timing does not reveal how much of a key was right. O(1).
        """
        return self._by_digest.get(_digest(_given_key(authorization)))


NO_KEYS = Keys()


def read_keys(path: Path | None, environment: Mapping[str, str]) -> Keys:
    """Read keys from a file (a line: KEY [TENANT]; # begins a comment line) and from HEADWAY_API_KEYS.

    Raises ConfigError for a file that cannot be read or has no key, a line of more than two words, a repeated key, or a
    tenant that is too long.
    """
    found = {key.encode(): "" for key in environment.get(ENVIRONMENT, "").replace(",", " ").split()}
    if path is None:
        return Keys(found)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"API keys cannot be read from {path}: {error}") from None
    count = len(found)
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if len(words) > 2:
            raise ConfigError(f"{where}: {len(words)} words; accepted: KEY [TENANT]")
        key, tenant = words[0].encode(), words[1] if len(words) == 2 else ""
        if len(tenant) > MAX_TENANT_CHARACTERS:
            raise ConfigError(
                f"{where}: a tenant of {len(tenant)} characters; accepted: {MAX_TENANT_CHARACTERS}"
            )
        if key in found:
            raise ConfigError(f"{where}: the key is given twice; accepted: each key once")
        found[key] = tenant
    if len(found) == count:
        raise ConfigError(f"{path} holds no API key; accepted: a line KEY [TENANT] for each")
    return Keys(found)


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()


def _given_key(authorization: bytes) -> bytes:
    scheme, _, rest = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


_WITHOUT_TOKENS = frozenset({
    "/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank",
    "/v2/rerank", "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/messages/render",
    "/v1/completions/render", "/v1/completions/derender", "/v1/chat/completions/render",
    "/v1/chat/completions/derender", "/v1/responses/render", "/version", "/v1/models", "/openapi.json",
})  # fmt: skip
"""Paths that generate no tokens, and whose answers are the same for all tenants."""


def check_key(path: str, key_tenant: str) -> None:
    """Raise GatewayError (403) if a tenant's key asks for something beyond the tenant.

    The list names what is allowed: vLLM has several paths to most of its functions, and instances may repeat all of
    them under a `--root-path`. Data about all tenants (`/metrics`, `/dashboard`, `/shadow`) is not on it.
    """
    explained = any(path == each or path.startswith(f"{each}/") for each in EXPLAIN_PATHS)
    if (
        not key_tenant
        or path in APIS
        or path in _WITHOUT_TOKENS
        or explained
        or is_of_batches(path)
        or response_of_path(path) is not None
    ):
        return
    raise GatewayError(
        403,
        "tenants_key",
        f"the key is a tenant's, and {path[:80]!r} concerns all tenants, or counts for none; accepted: "
        f"{', '.join(sorted(APIS))}, /v1/files, /v1/batches, /explain, what is "
        f"asked about texts, or a key without a tenant",
    )
