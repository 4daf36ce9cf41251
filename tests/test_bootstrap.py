from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap import answer_for_vllm

AS_PIP_WRITES_IT = f"""#!{sys.executable}
# -*- coding: utf-8 -*-
import re
import sys
from vllm.entrypoints.cli.main import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """vLLM's command as pip installs it."""
    script = tmp_path / "vllm"
    script.write_text(AS_PIP_WRITES_IT)
    script.chmod(0o755)
    return script


@pytest.mark.engine
def test_the_vllm_command_starts(command: Path) -> None:
    answer_for_vllm(command)
    done = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0.32")


def test_set_up_again_the_command_stays_as_it_is(command: Path) -> None:
    answer_for_vllm(command)
    once = command.read_text()
    answer_for_vllm(command)
    assert command.read_text() == once != AS_PIP_WRITES_IT


def test_a_command_of_another_kind_is_left_alone_and_named(
    command: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.write_text("#!/bin/sh\n")
    answer_for_vllm(command)
    assert command.read_text() == "#!/bin/sh\n"
    assert f"{command} does not start vLLM as expected" in capsys.readouterr().err
