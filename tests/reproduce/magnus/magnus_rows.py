"""A folder laid out as the shared data, of a few made rows a task."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

INSTRUCTIONS = {
    "mt_en_zh": ("Translate the text into Chinese.", "Translate the text into English."),
    "grammar_correction": ("Correct the sentence.",),
    "text_detox": ("Rewrite it politely.",),
    "code_translation_java_cs": ("Translate the C# code into Java.", "Translate the Java code into C#."),
    "bug_fixing": ("Fix the bug.",),
    "code_comment": ("Write a comment.",),
}
ROWS = 40
"""Of each of the eight tasks."""


def write_rows(folder: Path) -> Path:
    """Answers have half as many words as inputs, and one more each for their file's place; returns the folder."""
    (folder / "text").mkdir(parents=True)
    for place, (stem, instructions) in enumerate(INSTRUCTIONS.items()):
        rows = [
            {
                "instruction": instruction,
                "input": " ".join([f"w{number}"] * (4 + number)),
                "output": " ".join(["a"] * (place + 1 + number // 2)),
            }
            for instruction in instructions
            for number in range(ROWS)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "text" / f"{stem}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder
