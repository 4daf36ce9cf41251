"""Reads what benchmarks, servers and tracers write about requests: nested objects and logs become rows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from headway.errors import TraceError
from headway.traces.cells import Cells, optional_whole, shown
from headway.traces.formats import FORMATS, Format, More

Found = tuple[str, Any]
"""A position in the file, and what is there: a JSON object (any other value is odd), or a TraceError."""

_DEEPEST = 8
_BODY = re.compile(r"(re(q|s)|request|response)?(_?body)?|payload", re.IGNORECASE)


def flat(found: Mapping[str, Any], before: str = "", depth: int = 0) -> dict[str, Any]:
    """The values of an object and of those inside it, by their keys joined with dots; bodies that are text are
    decoded.
    """
    values: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, str) and value.startswith("{") and _BODY.fullmatch(key):
            with suppress(ValueError):
                value = json.loads(value)
        if isinstance(value, dict) and depth < _DEEPEST:
            values |= flat(value, f"{before}{key}.", depth + 1)
        else:
            values[before + key] = value
    return values


# ---- nested objects --------------------------------------------------------------------------------------

_HOLDERS = (
    *("resourceSpans", "scopeSpans", "instrumentationLibrarySpans", "spans", "benchmarks"),
    *(
        "requests",
        "data",
        "rows",
        "records",
        "trace",
        "traces",
        "entries",
        "items",
        "logs",
        "results",
        "samples",
    ),
)
"""Keys under which files have the list of their rows."""


def unfolded(place: str, found: Any) -> Iterator[Found]:
    """The rows in a JSON value: itself, or those in its lists, table of columns, spans, statuses or turns."""
    if not isinstance(found, dict):
        fault = TraceError(f"{shown(str(found))} is no object; accepted: a JSON object")
        yield place, found if isinstance(found, TraceError) else fault
    elif "attributes" in found or "tags" in found:
        yield from _span(place, found)
    elif any(form.fits(found) for form in FORMATS) and not _is_columns(found):
        yield place, found
    elif _is_columns(found):
        yield from _rows_of_columns(place, found)
    elif isinstance(found.get("turns"), list):
        for number, turn in enumerate(found["turns"], 1):
            session = {"session_id": found.get("session_id") or place}
            yield f"{place}, turn {number}", session | turn if isinstance(turn, dict) else turn
    else:
        yield from _held(place, found)


def _held(place: str, found: dict[str, Any]) -> Iterator[Found]:
    key = next((key for key in _HOLDERS if isinstance(found.get(key), list | dict)), None)
    if key is None or access_log(flat(found)):
        yield place, found
        return
    inner = found[key]
    if isinstance(inner, dict):  # guidellm groups requests by how they ended
        each = ((f"{place}, {status}", item | {"status": status})
                for status, items in inner.items() if isinstance(items, list)
                for item in items if isinstance(item, dict))  # fmt: skip
        for number, (where, item) in enumerate(each, 1):
            yield f"{where} {key} {number}", item
        return
    names = found.get("columns")  # pandas, orient="split"
    for number, item in enumerate(inner, 1):
        if isinstance(names, list) and isinstance(item, list):
            item = dict(zip(names, item, strict=False))
        yield from unfolded(f"{place}, {key} {number}", item)


def _columns(found: dict[str, Any]) -> Format | None:
    """The format whose columns an object has as lists, or as objects by row as pandas writes them."""
    fitting = (form for form in FORMATS if form.fits(found))
    return next((f for f in fitting if all(isinstance(found.get(c), list | dict) for c in f.columns)), None)


def _is_columns(found: dict[str, Any]) -> bool:
    return _columns(found) is not None


def _rows_of_columns(place: str, found: dict[str, Any]) -> Iterator[Found]:
    form = _columns(found)
    assert form is not None
    columns = {
        key: list(value.values()) if isinstance(value, dict) else value
        for key, value in found.items()
        if isinstance(value, list | dict)
    }
    counts = {key: len(columns[key]) for key in form.columns}
    count = counts[form.columns[0]]
    if len(set(counts.values())) > 1:
        yield place, TraceError(f"{shown(str(counts))} values are in the columns; accepted: as many in each")
        return
    whole_columns = {key: values for key, values in columns.items() if len(values) == count}
    for index in range(count):
        yield f"{place}, request {index + 1}", {key: values[index] for key, values in whole_columns.items()}


# ---- OpenTelemetry ---------------------------------------------------------------------------------------

_GENERATIONS = ("", "chat", "text_completion", "generate_content")
"""Operations that are one answer of a model; the spans of agents and tools contain such spans."""
_RENAMED = {
    "gen_ai.usage.prompt_tokens": "gen_ai.usage.input_tokens",
    "gen_ai.usage.completion_tokens": "gen_ai.usage.output_tokens",
    "llm.token_count.prompt": "gen_ai.usage.input_tokens",
    "llm.token_count.completion": "gen_ai.usage.output_tokens",
}


def _span(place: str, span: dict[str, Any]) -> Iterator[Found]:
    """A span of OTLP, of OpenTelemetry's console exporter or of Jaeger, if it is about a model's answer."""
    found = _attributes(span.get("attributes", span.get("tags")))
    values = {_RENAMED.get(key, key): value for key, value in found.items()}
    if not any(key.startswith("gen_ai.") for key in values):
        return
    started = span.get("startTimeUnixNano", span.get("start_time", span.get("startTime")))
    operation = values.get("gen_ai.operation.name", "")
    if operation not in _GENERATIONS:
        accepted = ", ".join(filter(None, _GENERATIONS))
        yield place, TraceError(f"gen_ai.operation.name is {operation!r}; accepted: {accepted}")
        return
    context = span.get("context")
    of_context = context.get("span_id") if isinstance(context, dict) else None
    ids = {
        "spanId": span.get("spanId", span.get("spanID", of_context)),
        "parentSpanId": span.get("parentSpanId", span.get("parent_id")),
    }
    yield place, {"startTimeUnixNano": started, "gen_ai.usage.output_tokens": None} | ids | values


def _attributes(found: Any) -> dict[str, Any]:
    if isinstance(found, dict):
        return found
    values: dict[str, Any] = {}
    for each in found if isinstance(found, list) else []:
        if isinstance(each, dict) and "key" in each:
            value = each.get("value")
            values[str(each["key"])] = next(iter(value.values()), None) if isinstance(value, dict) else value
    return values


# ---- access logs -----------------------------------------------------------------------------------------

_TIMES = (
    *("start_time", "startTime", "arrival_time", "arrived_at", "received_at", "arrival_timestamp", "arrival"),
    *("timestamp", "Timestamp", "@timestamp", "time", "ts", "datetime"),
    *("created_at", "createdAt", "created", "time_iso8601", "msec", "date", "at"),
)
_USAGES = (
    ("prompt_tokens", "completion_tokens"),
    ("input_tokens", "output_tokens"),
    ("promptTokens", "completionTokens"),
    ("inputTokens", "outputTokens"),
    ("input_length", "output_length"),
    ("prompt_len", "output_len"),
    ("input_len", "output_len"),
    ("num_prefill_tokens", "num_decode_tokens"),
)
_TEXTS = ("prompt_token_ids", "messages", "prompt", "input")
_STATUSES = ("status_code", "http_status", "status")
_SESSIONS = ("session_id", "conversation_id", "session")
_TENANTS = ("tenant", "end_user", "user")
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_LEAST_ERROR = 400


def access_log(keys: Collection[str]) -> Format | None:
    """The format of a log with a time and token counts for each request, by the keys of one row; None for others."""
    time = _key(keys, _TIMES)
    for asked, answered in _USAGES:
        of_input = _key(keys, (asked,))
        of_output = f"{(of_input or '').removesuffix(asked)}{answered}"
        if time and of_input and of_output in keys:
            break
    else:
        return None
    found = (_key(keys, names) for names in (_STATUSES, _SESSIONS, _TENANTS, _LIMITS, _TEXTS))
    status, session, tenant, limit, text = (key or "" for key in found)

    def more(cells: Cells) -> More:
        code = cells.get(status, "")
        if code.isdecimal() and int(code) >= _LEAST_ERROR:
            raise TraceError.of(status, code, "below 400")
        return More(
            session=cells.get(session) or None,
            tenant=cells.get(tenant, ""),
            max_output_tokens=optional_whole(cells, limit),
            text=cells.get(text, ""),
        )

    return Format(
        "access log",
        (time, of_input, of_output),
        time_unit="",
        more=more,
        optional=tuple(filter(None, (status, session, tenant, limit, text))),
    )


def _key(keys: Iterable[str], names: Iterable[str]) -> str | None:
    """The key of the first of some names, anywhere in an object; the least deep one."""
    for name in names:
        ending = [key for key in keys if key == name or key.endswith(f".{name}")]
        if ending:
            return min(ending, key=lambda key: (key.count("."), key))
    return None


# ---- vLLM's log ------------------------------------------------------------------------------------------

LOG_LINE = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR) (\d\d-\d\d) (\d\d:\d\d:\d\d(?:[.,]\d+)?) \[[^\]]*\] (.*)"
)
HTTP_LOG = re.compile(r'"(GET|POST|PUT|HEAD|OPTIONS) /\S* HTTP/')
VLLM_LOG_LACKS = (
    "accepted: one written with --enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG, "
    "without --max-log-len"
)
_RECEIVED = re.compile(r"Received request ([^\s:]+): (.*)")
_DETAILS = re.compile(r"Request ([^\s:]+) details: (.*)")
_GENERATED = re.compile(
    r"Generated response ([^\s:]+)(?: \(streaming (?:delta|complete)\))?(?: details)?: (.*)"
)
_PROMPT_IDS = re.compile(r"prompt_token_ids: \[([\d, ]*)\]")
_OUTPUT_IDS = re.compile(r"output_token_ids: [^\[(]*[\[(]([\d, ]*)[\])]")


def vllm_log(lines: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """The requests in a vLLM log, in order; token counts are the numbers of logged ids.

    The log's dates have no year, so a month earlier than that of the line above belongs to the next year.
    """
    rows: dict[str, tuple[str, dict[str, str]]] = {}
    year, before = 2000, ""
    for number, line in enumerate(lines, 1):
        match = LOG_LINE.search(line)
        if match is None:
            continue
        day, clock, said = match.groups()
        year, before = year + (before[:2] > day[:2]), day
        if received := _RECEIVED.match(said):
            cells = {
                "asctime": f"{year}-{day} {clock}",
                "prompt_token_ids": "",
                "output_token_ids": "",
                "text": "",
            }
            rows[received[1]] = f"line {number}", cells
        told = received or _DETAILS.match(said)
        if told and told[1] in rows and (ids := _PROMPT_IDS.findall(told[2])):
            numbers = ids[-1].replace(",", " ").split()
            rows[told[1]][1].update(prompt_token_ids=str(len(numbers)), text=" ".join(numbers))
        if (answer := _GENERATED.match(said)) and (ids := _OUTPUT_IDS.findall(answer[2])):
            name = answer[1] if answer[1] in rows else f"{answer[1]}-0"
            if name in rows:
                cells = rows[name][1]
                count = int(cells["output_token_ids"] or 0) + len(ids[-1].replace(",", " ").split())
                cells["output_token_ids"] = str(count)
    return list(rows.values())


# ---- known formats that are no traces --------------------------------------------------------------------

_KNOWN = (
    (("conversations",), "these are ShareGPT's conversations, which have no times of arrival"),
    (("custom_id", "url"), "this is a batch for OpenAI's API, which has no times of arrival"),
    (("input_lens",), "this is a result of vLLM's bench serve without start_times"),
    (("request_throughput",), "this is a result of vLLM's bench serve without --save-detailed"),
    (("benchmarks",), "this is a guidellm report without its requests"),
    (("text_input",), "this is an aiperf trace of texts, which tells no input_length"),
    (("session_id", "texts"), "this is an aiperf data set of texts, which tells no input_length"),
    (("session_id", "text"), "this is an aiperf data set of texts, which tells no input_length"),
    (
        ("at", "outcome", "ttft_ms"),
        "this is an access log of Headway's gateway, which tells no prompt tokens",
    ),
    (("at", "path", "outcome"), "this is an access log of Headway's gateway, which tells no prompt tokens"),
    (("resourceSpans",), "these are OpenTelemetry spans without gen_ai.usage"),
    (("t", "in", "out"), "this is a WEKA trace, which is not read"),
)


def known_otherwise(found: Mapping[str, Any]) -> str | None:
    """The name of a known format that is no trace, by an object's keys; None for any other."""
    return next((said for keys, said in _KNOWN if set(keys) <= set(found)), None)
