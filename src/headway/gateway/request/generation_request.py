"""Reads a request for tokens once: decodes what the gateway needs, and keeps the rest as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from headway.core.hints import (
    AGENTIC_CONTEXT,
    MAY_MOVE,
    PROGRAM,
    TENANT,
    RequestHints,
    elsewhere_hint,
    hints_of_request,
    quoted,
    target_hints,
)
from headway.core.slo import NO_TARGETS, Slo
from headway.errors import HintError
from headway.gateway.book.accounts import BatchLine
from headway.gateway.http.api import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api
from headway.gateway.http.refusal import GatewayError, bad_request
from headway.gateway.request.program import of_tenant, program_of
from headway.http_client import NOT_AS_EXPECTED
from headway.routing.cache_aware import BYTES_PER_TOKEN, prompt_blocks

T = TypeVar("T")

MAX_ID_CHARACTERS = 256
"""Longest id of a request: logs, records, pages and instances all repeat it."""

MAX_FIELDS = 1000
"""Most fields of a body, since each costs the gateway time. vLLM knows about a hundred."""
MAX_XARGS, MAX_XARGS_BYTES = 64, 2**20
"""Limits for vLLM's extra arguments, which are decoded and encoded again as a whole."""

Fields = dict[str, msgspec.Raw]

_BYTES_PER_ID = 6
"""Assumed bytes of a token id with its comma."""
_BEFORE_PROMPT = ("model", "chat_template_kwargs", "cache_salt")
"""Fields that, beside the prompt, determine its KV."""
_BLOCKS_READ_BYTES = 2**21
"""Bytes of a field that are used for the names of blocks."""


_WORDS = dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True)
_WORDS |= dict.fromkeys(("0", "off", "f", "false", "n", "no"), False)
"""Texts that vLLM's models (pydantic's lax mode) read as true or false, in any case."""


def _lax_bool(value: object) -> bool | None:
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    return value == 1 if isinstance(value, int | float) and value in (0, 1) else None


def _lax_number(value: object) -> int | None:
    """Accepts also 16.0, "16", " 16.0 " and true."""
    try:
        number = int(value) if isinstance(value, str | int) else None
    except ValueError:
        number = None
    if number is None and isinstance(value, str | float):
        with suppress(ValueError):
            number = int(float(value)) if float(value).is_integer() else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


class _Kind(Generic[T]):
    """The type of a field, apart from null. `lax` reads values of other types as vLLM does; None: not accepted.

    Decoders are made once: making one costs more than using it.
    """

    def __init__(self, kind: Any, accepted: str, lax: Callable[[object], T | None] | None = None) -> None:
        self._strict: Callable[[msgspec.Raw], T | None] = msgspec.json.Decoder(kind | None).decode
        self._lax = lax
        self.accepted = accepted

    def decode(self, raw: msgspec.Raw) -> T | None:
        """The value; None for null. Raises one of NOT_AS_EXPECTED for another type, since only its outline was read
        before.
        """
        try:
            return self._strict(raw)
        except msgspec.ValidationError:
            found = None if self._lax is None else self._lax(msgspec.json.decode(raw))
            if found is None:
                raise
            return found


_NUMBER: _Kind[int] = _Kind(
    Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)], "a whole number of 64 bits", _lax_number
)
_YES_OR_NO: _Kind[bool] = _Kind(bool, "true or false", _lax_bool)
_TEXT: _Kind[str] = _Kind(str, "a text")
_OBJECT: _Kind[dict[str, Any]] = _Kind(dict[str, Any], "an object")
_FIELDS: _Kind[Fields] = _Kind(Fields, "an object")

_ATTRIBUTION = re.compile(rb'"x-anthropic-billing-header[^"]*')
"""A text from Claude Code with a hash that differs between requests; vLLM leaves it out of the prompt."""

_LISTS = (
    "texts", "images", "inputs", "documents", "queries", "items", "data_1", "data_2", "text_1", "text_2",
)  # fmt: skip
"""Fields of embeddings and scores: each element is a sequence, whatever it is."""

_FORM_MODEL = re.compile(rb'name="?model"?\r\n\r\n([^\r\n]{1,256})\r\n')

whole_number = _NUMBER.decode
"""Decodes a number in a field that an instance has accepted."""
_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.encode
_TRUE, _NULL = msgspec.Raw(b"true"), msgspec.Raw(b"null")


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """A client's request in one of the APIs. `max_tokens` is None if it sets no limit.

    `model` is empty if it names none. `answers` is its number of answers (prompts times `n`), each of which is a
    sequence of the engine. `prompt_tokens` is a guess unless the prompt came as token ids. `path` includes the query.
    `previous_id` names the response that it continues. `tenant` is a label; `share` is the tenant for limits and
    schedulers, empty if clients name themselves and are not trusted. `wants_ids` and `wants_usage`: whether the client
    itself asked for token ids, and for a last event with the token counts. `program` is the agent program to which it
    belongs, empty if unknown. `batch` is None unless the request belongs to a batch.
    """

    path: str
    api: Api
    fields: Fields
    model: str
    stream: bool
    answers: int
    prompt_tokens: int
    max_tokens: int | None
    request_id: str
    previous_id: str | None
    slo: Slo
    tenant: str
    share: str
    priority: int | None
    may_move: bool
    wants_ids: bool
    wants_usage: bool
    xargs: dict[str, Any]
    program: str = ""
    batch: BatchLine | None = None

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together, as far as known."""
        return self.prompt_tokens + (self.max_tokens or 0)

    @property
    def chat(self) -> bool:
        """Whether its answer is a chat completion."""
        return self.api is CHAT

    @property
    def is_stored(self) -> bool:
        """Whether its instance stores the response for others to continue."""
        return self.api is RESPONSES and _value(self.fields, "store", _YES_OR_NO) is not False

    @property
    def is_background(self) -> bool:
        """Whether its instance only acknowledges, and makes the response later."""
        return self.api is RESPONSES and _value(self.fields, "background", _YES_OR_NO) is True

    @property
    def one_answer(self) -> bool:
        """Whether it is a single job of an engine, which can move, and not several with one answer."""
        return self.answers == 1

    def body(self, *, hints: dict[str, Any] | None, request_id: bool, ids: bool) -> bytes:
        """The body for an instance: the client's fields, plus what this instance is told.

        `hints` are for Headway's `vllm_xargs` (None: the instance does not understand any); `request_id`: whether it
        takes one; `ids`: whether token ids are requested.
        """
        fields = dict(self.fields)
        if hints is not None and (hints or self.xargs):
            fields["vllm_xargs"] = _raw({**self.xargs, **hints})
        if self.priority is not None and self.api.takes_priority:
            fields["priority"] = _raw(self.priority)
        if request_id and self.api.takes_id:
            fields.setdefault("request_id", _raw(self.request_id))
        if ids:
            fields["return_token_ids"] = _TRUE
        return _encode(fields)

    def prefix_blocks(self) -> tuple[int, ...]:
        """Names of the prompt's leading blocks, for routers. O(bytes), up to _BLOCKS_READ_BYTES a field."""
        prompt = self._beginnings(self.api.prompt, b"")
        if self.api is MESSAGES:
            prompt = _ATTRIBUTION.sub(b'"', prompt)
        before = self._beginnings(_BEFORE_PROMPT, b"\n")
        first = prompt[:16].lstrip(b"[ \n")[:1]
        by_ids = self.api is COMPLETIONS and prompt.startswith(b"[") and first.isdigit()
        bytes_per_token = _BYTES_PER_ID if by_ids else BYTES_PER_TOKEN
        return prompt_blocks(prompt, within=before, bytes_per_token=bytes_per_token)

    def _beginnings(self, names: Sequence[str], between: bytes) -> bytes:
        fields = (memoryview(self.fields.get(name, b"")) for name in names)
        return between.join(field[:_BLOCKS_READ_BYTES] for field in fields)

    def hints(self, slo: Slo, *, may_move: bool, waiting_elsewhere: Sequence[int] = ()) -> dict[str, Any]:
        """What Headway's scheduler is told: the targets, whether another instance would take the request, and what
        waits there.
        """
        said: dict[str, Any] = {**target_hints(slo)}
        if self.share:
            said[TENANT] = self.share
        if self.program:
            said[PROGRAM] = self.program
        said[MAY_MOVE] = int(may_move and self.may_move and self.one_answer)
        said |= elsewhere_hint(waiting_elsewhere)
        return said


def read_request(
    path: str,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    *,
    request_id: str,
    default_slo: Slo = NO_TARGETS,
    key_tenant: str = "",
    names_tenants: bool = True,
) -> GenerationRequest:
    """Read a request. An id in the body has precedence over `request_id`; a key's tenant over all others.

    `names_tenants`: whether a tenant that the request names has a share of its own.

    The path, which may have a query, is one of the APIs'. A response for a key's tenant always gets a new id: a client
    that knows the id may ask for the response, so ids must be unique and hard to guess.

    Fields that the gateway does not need are left for the instance to judge. Raises GatewayError (400, or 403 for a
    tenant other than the key's).
    """
    fields = _read_fields(body)
    api = APIS[path.partition("?")[0]]
    xargs = _xargs(fields)
    hints = checked_hints(headers, xargs, _value(fields, "priority", _NUMBER), default_slo)
    if api is RESPONSES and key_tenant:
        fields.pop("request_id", None)
        request_id = uuid4().hex
    if api is COMPLETIONS:
        prompts, prompt_tokens = _prompts(fields)
    else:
        prompts, prompt_tokens = 1, sum(_guess(fields.get(name)) for name in api.prompt)
    options = _value(fields, "stream_options", _FIELDS) or {}
    limits = (_value(fields, name, _NUMBER) for name in api.limits)
    tenant = tenant_of(hints.tenant, key_tenant)
    share = tenant if names_tenants else ""
    program = _program(headers, fields, xargs, share)
    xargs.pop(TENANT, None)
    return GenerationRequest(
        path=path,
        api=api,
        fields=fields,
        model=_value(fields, "model", _TEXT) or "",
        stream=_value(fields, "stream", _YES_OR_NO) or False,
        answers=prompts * max(1, _value(fields, "n", _NUMBER) or 1) if api.several else 1,
        prompt_tokens=prompt_tokens,
        max_tokens=next((limit for limit in limits if limit is not None), api.default_max_tokens),
        request_id=_name(fields, api, request_id),
        previous_id=_value(fields, "previous_response_id", _TEXT) if api is RESPONSES else None,
        slo=hints.slo,
        tenant=tenant,
        share=share,
        priority=priority_of(hints.priority, key_tenant),
        may_move=hints.may_move,
        wants_ids=_value(fields, "return_token_ids", _YES_OR_NO) or False,
        wants_usage=_value(options, "include_usage", _YES_OR_NO) or False,
        xargs=xargs,
        program=program,
    )


class Outline(NamedTuple):
    """What a body on a path without an `Api` asks for: the model, if it names one, and the number of sequences."""

    model: str
    sequences: int


def outline_of(body: bytes, *, names_tenants: bool = True) -> Outline:
    """The outline of a body, such as that of /invocations or /v1/chat/completions/batch.

    Sequences are its prompts, conversations or texts, times `n`, which may stand in `sampling_params`. A body that is
    not a JSON object counts as one. Raises GatewayError (400) for an `n` that is not a number, a model that is not
    text, and, unless `names_tenants`, for a tenant in the body, which is forwarded unchanged.
    """
    if body.startswith(b"--"):  # a form with audio
        named = _FORM_MODEL.search(body)
        return Outline(named[1].decode(errors="replace") if named else "", 1)
    fields = _fields_as_in_python(body)
    nested = _value(fields, "sampling_params", _FIELDS) or {}
    for name, each in (("vllm_xargs", fields), ("vllm_xargs", nested), ("extra_args", nested)):
        if not names_tenants and TENANT in (_value(each, name, _FIELDS) or {}):
            raise bad_request(
                f"{name} names a tenant on this path; accepted: with --trust-tenants, or a key", name
            )
    answers = max(1, *(_value(each, "n", _NUMBER) or 1 for each in (fields, nested)))
    several = [_prompts(fields)[0]]
    several += [_prompts_in(bytes(fields[name]))[0] for name in ("messages", "input") if name in fields]
    lists = [raw for name in _LISTS if (raw := bytes(fields.get(name, b""))).startswith(b"[")]
    several += [len(_decode_parts(raw)) for raw in lists]
    return Outline(_value(fields, "model", _TEXT) or "", max(several) * answers)


def _fields_as_in_python(body: bytes) -> Fields:
    """The fields that vLLM finds; none if it finds no object. vLLM reads JSON like Python, including UTF-16 and NaN."""
    try:
        return _decode_fields(body)
    except NOT_AS_EXPECTED:
        pass
    try:
        found = json.loads(body, parse_constant=str)
        return _decode_fields(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return {}


def checked_hints(
    headers: Sequence[tuple[bytes, bytes]],
    xargs: Mapping[str, Any],
    priority: int | None,
    default_slo: Slo = NO_TARGETS,
) -> RequestHints:
    """See `hints_of_request`. Raises GatewayError (400) for hints that are not accepted."""
    try:
        return hints_of_request(headers, xargs, priority, default_slo)
    except HintError as error:
        raise bad_request(str(error), error.where) from None


def _read_fields(body: bytes) -> Fields:
    try:
        fields = _decode_fields(body)
        str(body, "utf-8")  # the decoder checks only names
    except NOT_AS_EXPECTED as error:
        raise bad_request(f"the body is not a JSON object ({error}); accepted: an object") from None
    if len(fields) > MAX_FIELDS:
        raise bad_request(f"the body has {len(fields)} fields; accepted: up to {MAX_FIELDS}")
    return fields


def _xargs(fields: Fields) -> dict[str, Any]:
    size = memoryview(fields.get("vllm_xargs", b"")).nbytes
    if size > MAX_XARGS_BYTES:
        raise bad_request(f"vllm_xargs has {size} bytes; accepted: up to {MAX_XARGS_BYTES}", "vllm_xargs")
    xargs = _value(fields, "vllm_xargs", _OBJECT) or {}
    if len(xargs) > MAX_XARGS:
        raise bad_request(f"vllm_xargs has {len(xargs)} keys; accepted: up to {MAX_XARGS}", "vllm_xargs")
    return xargs


def _value(fields: Fields, name: str, kind: _Kind[T]) -> T | None:
    """A field's value; None if it is absent or null."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return kind.decode(raw)
    except NOT_AS_EXPECTED:
        shown = bytes(raw)[:80].decode(errors="replace")
        raise bad_request(f"{name} is {shown}; accepted: {kind.accepted}", name) from None


def _program(
    headers: Sequence[tuple[bytes, bytes]], fields: Fields, xargs: dict[str, Any], tenant: str
) -> str:
    """The named program, removed from the extra arguments: vLLM accepts no objects there."""
    named = program_of(headers, xargs, _foreign(fields, "nvext"), _foreign(fields, "metadata"))
    xargs.pop(PROGRAM, None)
    if isinstance(xargs.get(AGENTIC_CONTEXT), dict):
        del xargs[AGENTIC_CONTEXT]
        fields["vllm_xargs"] = _raw(xargs)
    return of_tenant(named, tenant)


def _foreign(fields: Fields, name: str) -> object:
    """A field of another product, if it can be read; else None."""
    raw = fields.get(name)
    with suppress(*NOT_AS_EXPECTED):
        return None if raw is None else msgspec.json.decode(raw)
    return None


def _name(fields: Fields, api: Api, request_id: str) -> str:
    """The request's id: the body's, if valid, else the given id in the API's form."""
    if not api.takes_id:
        return request_id
    name = _value(fields, "request_id", _TEXT)
    if name is not None and (len(name) > MAX_ID_CHARACTERS or not name.isprintable()):
        raise bad_request(
            f"request_id is {quoted(name)}; accepted: up to {MAX_ID_CHARACTERS} printable characters",
            "request_id",
        )
    return name or api.id_prefix + request_id.removeprefix(api.id_prefix)


def _prompts(fields: Fields) -> tuple[int, int]:
    """The number of prompts of a completion, and of their tokens, estimated for text. O(bytes)."""
    given = [raw for name in ("prompt", "prompt_embeds") if (raw := fields.get(name)) not in (None, _NULL)]
    counted = [_prompts_in(bytes(raw)) for raw in given] or [(1, 0)]
    return sum(prompts for prompts, _ in counted), sum(tokens for _, tokens in counted)


def _prompts_in(text: bytes) -> tuple[int, int]:
    inner = text[1:].lstrip()[:1]
    if not text.startswith(b"[") or inner == b"]":
        return 1, _guess(text)
    if inner not in (b'"', b"["):
        return 1, text.count(b",") + 1
    prompts = len(_decode_parts(text))
    return prompts, text.count(b",") + 1 if inner == b"[" else _guess(text)


def _guess(raw: msgspec.Raw | bytes | None) -> int:
    return 0 if raw is None else max(1, len(bytes(raw)) // BYTES_PER_TOKEN)


def tenant_of(named: str, of_key: str) -> str:
    """The request's tenant: its key's, or as it says. Raises GatewayError (403) if it names another than its key's."""
    if of_key and named not in ("", of_key):
        raise GatewayError(
            403,
            "wrong_tenant",
            f"the tenant is {named!r}, the key's is {of_key!r}; accepted: the key's, or none",
        )
    return of_key or named


def priority_of(named: int | None, of_key: str) -> int | None:
    """The priority, lower is more urgent. With a tenant's key a request may be lowered, not raised."""
    return max(0, named) if named is not None and of_key else named


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))
