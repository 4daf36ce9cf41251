from __future__ import annotations

import json

from headway.core.cost import UnknownCost
from headway.core.length_estimate import LengthEstimate
from headway.core.plan import Fate
from headway.explain.explanation import explain
from headway.explain.text import told_data, told_text
from tests.explain.trail_scene import Scene, displaced_scene


def test_the_explanation_as_text() -> None:
    scene = displaced_scene()
    found = explain(scene.trail, "a", scene.now_s, block_bytes=1 << 20)
    assert found is not None
    assert told_text(found.story, found).splitlines()[-5:] == [
        "waited 2 s in all: 1 s its KV blocks did not fit the free ones; 1 s others were to start first",
        "behind b for 2 s; 0 overtook it",
        "displaced at 2.0000 s by b: the policy made room for b; its KV is to be computed again",
        "slack: 3 s (first token) at 0.0000 s, -1 s (whole answer) at 5.0000 s",
        "KV moved: 5 tokens computed again (1.2 MiB)",
    ]


def test_times_are_since_an_origin() -> None:
    scene = displaced_scene()
    found = explain(scene.trail, "b", scene.now_s)
    assert found is not None
    text = told_text(found.story, found, origin_s=1.0)
    assert "    0.0000 s             arrived: 4 prompt tokens: " in text
    assert "    3.0000 s             finished, 3 s after it arrived" in text
    data = told_data(found.story, found, origin_s=1.0)
    assert data["arrival_s"] == 0.0
    assert data["chapters"][-1] == {"what": "ended", "start_s": 3.0, "end_s": 3.0, "why": "finished"}  # type: ignore[index]


class TokenSeconds(UnknownCost):
    """An eighth of a second a token."""

    def prefill_s(self, num_tokens: int) -> float:
        return num_tokens / 8


def test_what_was_predicted_stands_beside_what_came() -> None:
    scene = Scene()
    scene.come("a").predicted_length = LengthEstimate(20.0, 10.0, 40.0)
    scene.trail.cost = TokenSeconds()
    scene.step({"a": 4}, admitted="a")
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    assert told_text(found.story, found).splitlines()[-2:] == [
        "answer: 20 tokens predicted (10 to 40), 1 came",
        "first token: 1 s after its start; its prompt alone takes 500 ms",
    ]
    assert told_text(found.story, found).splitlines()[0].endswith("1 output token, live")


def test_what_went_to_the_host_and_how_often_it_was_displaced() -> None:
    scene = Scene()
    job = scene.come("a")
    for _ in range(5):
        scene.step({"a": job.num_tokens - job.num_computed_tokens}, admitted="a")
        scene.step({}, preempted={"a": Fate.SWAP})
    job.swapped_blocks = 9
    found = explain(scene.trail, "a", scene.now_s, block_bytes=100)
    assert found is not None
    lines = told_text(found.story, found).splitlines()
    assert "displaced 2 more times" in lines
    assert any(line.startswith("KV moved: 9 blocks to the host (900 bytes), ") for line in lines)


def test_the_explanation_as_data_is_json() -> None:
    scene = displaced_scene()
    found = explain(scene.trail, "a", scene.now_s, block_bytes=8)
    assert found is not None
    data = json.loads(json.dumps(told_data(found.story, found)))
    assert data["displaced"] == [
        {
            "at_s": 2.0,
            "tokens": 5,
            "swapped": False,
            "why": "the policy made room for b; its KV is to be computed again",
            "by": ["b"],
        }
    ]
    assert data["behind"] == [{"id": "b", "seconds": 2.0, "overtook": False}]
    assert data["moved"]["recomputed_bytes"] == 10
    assert data["slack"][0] == {"at_s": 0.0, "slack_s": 3.0, "target": "first token"}
    assert told_data(found.story) == {
        name: value for name, value in told_data(found.story, found).items() if name in told_data(found.story)
    }
