"""Every error Headway raises on purpose.

HeadwayError
├── ConfigError      a flag, setting or combination that is not accepted (also a ValueError)
│   └── HintError    a target, tenant or priority of a request that is not accepted
├── TraceError       a trace that cannot be read as requests (also a ValueError)
├── RecordError      a records file that cannot be written or read back (also a ValueError)
├── PlanError        a policy returned a plan that breaks the rules of `core.plan_check`
├── SimulationError  a simulation that cannot go on, such as a policy that leaves work lying
├── SeamError        the installed vLLM is not what `engine.vllm_seams` was written against
└── UpstreamError    an endpoint did not answer, or not as an OpenAI-compatible server would

A message says what was wrong, the value found, and what is accepted: values after "accepted:", else what to do.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self

VLLM_COMES_BY = "pip install vllm==0.33.0 for CUDA, or for a CPU `make setup` in a checkout"
"""How to get vLLM, for messages. The CPU build's packages break each other if pip installs them (adr/0002)."""


class HeadwayError(Exception):
    """Root of all deliberate errors. `setting` is the setting with which the message begins, if there is one."""

    setting: str | None = None

    @classmethod
    def of(cls, setting: str, found: object, accepted: str | None = None) -> Self:
        """The error for a setting with a value that is not accepted. Without `accepted`, `found` says what to do."""
        error = cls(f"{setting} is {found}" + ("" if accepted is None else f"; accepted: {accepted}"))
        error.setting = setting
        return error

    def told_of(self, name: str) -> str:
        """The message with `name` in place of the setting's own name."""
        return name + str(self).removeprefix(self.setting or "")


class ConfigError(HeadwayError, ValueError):
    """A flag, setting or combination of them is not accepted."""


class HintError(ConfigError):
    """A target, tenant or priority of a request is not accepted; `where` names its header or its key in the body."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


class TraceError(HeadwayError, ValueError):
    """A trace cannot be read as a stream of requests."""


class RecordError(HeadwayError, ValueError):
    """A records file cannot be written or read back."""


class PlanError(HeadwayError):
    """A policy returned a plan that breaks the rules of `core.plan_check`."""


class SimulationError(HeadwayError):
    """A simulation cannot go on."""


class SeamError(HeadwayError):
    """The installed vLLM differs from what the plug-in was written against."""


class UpstreamError(HeadwayError):
    """An endpoint did not answer as an OpenAI-compatible server does."""


def meant(name: str, names: Iterable[str], accepted: str = "", *, listed: str = "") -> str:
    """The end of a message about a name that is none of `names`: those nearest to it, then what is accepted.

    Case does not matter. `accepted` says what is accepted where that is more than the names. With `listed`, the place
    where all names stand, the nearest names are enough.

    >>> meant("sjff", ["vllm", "sjf", "edf"])
    'did you mean sjf? accepted: vllm, sjf, edf'
    """
    by_lower = {each.lower(): each for each in names}
    near = [] if name in by_lower.values() else get_close_matches(name.lower(), by_lower)
    said = f"accepted: {accepted or ', '.join(by_lower.values()) or 'none'}"
    if not near:
        return said
    rest = f"All: {listed}" if listed else said
    return f"did you mean {' or '.join(by_lower[each] for each in near)}? {rest}"
