from __future__ import annotations

import base64
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.gateway.http.keys import NO_KEYS, Keys, read_keys

KEYS = Keys({b"k1": "", b"k2": "blue"})


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


@pytest.mark.parametrize(
    ("authorization", "tenant"),
    [
        (b"Bearer k1", ""),
        (b"bearer  k2 ", "blue"),
        (basic("anybody:k2"), "blue"),
        (basic(":k1"), ""),
        (b"Bearer k3", None),
        (b"Bearer ", None),
        (b"Bearer", None),
        (b"", None),
        (b"k1", None),
        (basic("k1"), None),
        (b"Basic !", None),
        (b"Digest k1", None),
    ],
)
def test_who_may_ask(authorization: bytes, tenant: str | None) -> None:
    assert KEYS.tenant_of(authorization) == tenant


def test_without_keys_there_is_nothing_to_check() -> None:
    assert not NO_KEYS
    assert KEYS
    assert "k1" not in repr(KEYS)


def test_keys_come_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nk1\n\n  k2   blue\n")
    found = read_keys(path, {"HEADWAY_API_KEYS": "e1, e2\te3"})
    assert found.tenants == {b"e1": "", b"e2": "", b"e3": "", b"k1": "", b"k2": "blue"}
    assert read_keys(None, {}).tenants == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no API key"),
        ("# nothing\n", "holds no API key"),
        ("k1 blue sky\n", "line 1: 3 words; accepted: KEY"),
        ("k1\nk1 blue\n", "line 2: the key is given twice"),
        (f"k1 {'t' * 129}\n", "a tenant of 129 characters"),
    ],
)
def test_a_file_that_is_not_of_keys_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_keys(path, {})


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="API keys cannot be read from"):
        read_keys(tmp_path / "none", {})
