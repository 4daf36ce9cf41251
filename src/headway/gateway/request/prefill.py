"""The prompt as a request of its own for a prefill instance: vLLM's protocol for separate prefill and decode.

The prefill instance gets the request with a limit of one token and `do_remote_decode`. Its answer says where the
prompt's KV is (NIXL), or nothing if both instances share a storage (`ExampleConnector`). A decode instance gets the
whole request with that information.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from headway.core.hints import OF_ANSWERS
from headway.errors import UpstreamError
from headway.gateway.http.api import RESPONSES
from headway.gateway.http.refusal import bad_request
from headway.gateway.request.generation_request import GenerationRequest
from headway.http_client import NOT_AS_EXPECTED

TRANSFER = "kv_transfer_params"

_NULL, _FALSE, _ONE = msgspec.Raw(b"null"), msgspec.Raw(b"false"), msgspec.Raw(b"1")
_NOTHING = (None, _NULL, _FALSE)
_KEEP_KV = msgspec.Raw(
    msgspec.json.encode(
        {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
    )
)
_OF_ANSWERS = ("stream", "stream_options", "min_tokens")
"""Fields that ask for a stream, or for more than one token."""
_WHOLE_PROMPT = ("prompt_logprobs", "echo", "use_beam_search", "prompt_embeds")
"""Fields that rule out KV from elsewhere: log probabilities of the prompt need its computation, vLLM sends no
transfer parameters with beams, and connectors count a prompt by its token ids.
"""


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = _NULL


def has_prompt_stage(request: GenerationRequest) -> bool:
    """Whether a prefill instance can compute the prompt; otherwise the decode instance serves the whole request.

    Transferred KV serves a single answer, and for several prompts vLLM returns the parameters of one. A response may
    build upon another, which only the instance that made it has.

    Raises GatewayError (400) for a request with transfer parameters of its own, since those name addresses to connect
    to.
    """
    if request.fields.get(TRANSFER) not in _NOTHING:
        raise bad_request(f"{TRANSFER} is given; accepted: none, since the gateway sets it", TRANSFER)
    needs_all = any(request.fields.get(name) not in _NOTHING for name in _WHOLE_PROMPT)
    return request.one_answer and request.api is not RESPONSES and not needs_all


def prompt_alone(request: GenerationRequest) -> GenerationRequest:
    """The request that computes the prompt and keeps its KV."""
    fields = {name: raw for name, raw in request.fields.items() if name not in _OF_ANSWERS}
    limits = [name for name in request.api.limits if name in fields] or request.api.limits[-1:]
    fields |= dict.fromkeys(limits, _ONE)
    xargs = {name: value for name, value in request.xargs.items() if name not in OF_ANSWERS}
    return replace(request, fields={**fields, TRANSFER: _KEEP_KV}, xargs=xargs, stream=False, max_tokens=1)


def read_transfer(body: bytes) -> msgspec.Raw:
    """What the decode instance is told about the prompt's KV; `null` if nothing. Raises UpstreamError."""
    try:
        return msgspec.json.decode(body, type=_Answer).kv_transfer_params
    except NOT_AS_EXPECTED as error:
        raise UpstreamError(f"the answer to a prompt is no object ({error})") from None


def with_transfer(request: GenerationRequest, transfer: msgspec.Raw) -> GenerationRequest:
    """The request for the decode instance."""
    return request if transfer == _NULL else replace(request, fields={**request.fields, TRANSFER: transfer})
