"""What a server's policy goes without, where it is then not all that its name stands for."""

from __future__ import annotations

from headway.core.slo import Slo
from headway.engine.settings import EngineSettings
from headway.policies.presets import build_policy


def notes(settings: EngineSettings, slo: Slo) -> list[str]:
    """For people: predictions, host memory and targets that the policy would go by and nobody gave.

    `slo` are the targets of requests that name none.
    """
    policy = build_policy(settings.preset())
    found = []
    if policy.uses_predictions and settings.predictor is None:
        found.append("Nobody predicts how long answers will be (--predictor).")
    if policy.uses_host and settings.host_kv is None:
        found.append("There is no host memory (--host-kv-gib), so KV is computed again, not swapped.")
    if policy.needs_targets and not slo:
        found.append(
            "Requests that name no target have none (--slo-ttft, --slo-tbt), and are served as they come."
        )
    return found
