"""What is written down of a command."""

from __future__ import annotations

import shlex

import pytest

from headway.cli.written_command import written_command


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("bench --model demo -- --max-num-seqs 8", "headway bench --model demo -- --max-num-seqs 8"),
        ("simulate --jobs 2 --out dir --json", "headway simulate --json"),
        ("simulate --jobs 4 --trace t --out=x --seeds 2 --out y", "headway simulate --trace t --seeds 2"),
        ("simulate --jobs=2 --model demo --out=dir", "headway simulate --model demo"),
        (
            "bench -- --api-key one two --seed 1 --hf-token=x",
            "headway bench -- --api-key '***' '***' --seed 1 '--hf-token=***'",
        ),
        ("bench -- --api_key one --hf_token=x", "headway bench -- --api_key '***' '--hf-token=***'"),
    ],
)
def test_flags_that_change_nothing_are_left_out_and_secrets_hidden(given: str, written: str) -> None:
    assert written_command(["/bin/headway", *given.split()], without=("--jobs", "--out")) == written


def test_it_can_be_copied_into_a_shell() -> None:
    words = ["headway", "bench", "--trace", "my file.csv", "--policies", "a,b"]
    assert shlex.split(written_command(words)) == words
