"""How well answer lengths are predicted, and at what cost: `python bench/length.py --json`.

Each set is split so that no prompt is on both sides: by a hash of the prompt, three quarters teach and one judges;
recordings of token counts by time. Every way is taught by the same rows: the mean, the mean of each application, a
line and a forest over the input's length, and Magnus's features with each encoder, under the default forest
(quantiles, boosted) and under the paper's (`, rf`). `learned` has no text; on recordings it starts from nothing and
learns as answers end. `all_tasks` is one predictor for all of the paper's applications. `coverage` aims at 0.8.
Chats are the hard case: hardly anything in a prompt says how long a free answer will be, and this bench says so.

Answers are counted without a tokenizer (a token for each word, CJK character or punctuation mark) except in
`lengths/`, by Llama-2's, and alpaca_eval, in words. Without the shared data, the demo model's own tasks are used, with
the lengths that it decoded. Times are medians of single requests on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.length_data import SHARED, DataSet, load_sets, published_classes, repeated
from bench.length_figures import Figures, plain_figures
from bench.length_ways import APP_MEAN, BASELINES, Remembering, judged

ROWS = 3000
LEAST_ROWS = 100
"""With fewer, what learns from nothing has hardly begun where it is judged."""
ENCODERS = "hash,minilm"
_COLUMNS = (("mae", 1), ("rmse", 1), ("tau", 3), ("coverage", 3), ("encode_us", 0), ("predict_us", 0))


def main() -> None:
    """Print `{"data", "rows_a_set", "sets": [{"name", "ways": {...}}], "no_better_than_the_mean", "references"}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, in place of a table")
    parser.add_argument(
        "--data", type=Path, help="folder with text/ and lengths/; default: the shared data, else demo tasks"
    )
    parser.add_argument("--rows", type=int, default=ROWS, help=f"at most so many of each set ({ROWS})")
    parser.add_argument(
        "--encoders", default=ENCODERS, help=f"{ENCODERS}, st:<directory or hub id>; commas between"
    )
    arguments = parser.parse_args()
    if arguments.rows < LEAST_ROWS:
        parser.error(f"--rows is {arguments.rows}; accepted: {LEAST_ROWS} or more")
    data = arguments.data or (SHARED if SHARED.is_dir() else None)
    encoded = [Remembering(encoder) for encoder in arguments.encoders.split(",")]
    on_one_core()
    found = measured(load_sets(data, arguments.rows), encoded)
    found = {
        "data": "demo-tasks" if data is None else "shared",
        "rows_a_set": arguments.rows,
        **found,
        "references": {} if data is None else references(data),
    }
    print(json.dumps(found) if arguments.json else table(found))


def on_one_core() -> None:
    """Keep sentence-transformers' library to one thread, as figures are of one core."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def measured(sets: Sequence[DataSet], encoded: Sequence[Remembering]) -> dict[str, Any]:
    """Every way on every set, and where a way with a forest is no better than the mean of the application."""
    rows = []
    for data in sets:
        print(f"{data.name}: {len(data.train)} teach, {len(data.test)} judge", file=sys.stderr)
        ways = judged(data, encoded)
        rows.append(
            {
                "name": data.name,
                "kind": data.kind,
                "train_rows": len(data.train),
                "test_rows": len(data.test),
                "mean_tokens": round(float(np.mean([row.output_tokens for row in data.test])), 1),
                "ways": {name: rounded(figures) for name, figures in ways.items()},
            }
        )
    return {"sets": rows, "no_better_than_the_mean": no_better(rows)}


def rounded(figures: Figures) -> dict[str, float | None]:
    """As many digits as mean something."""
    values = asdict(figures)
    return {
        name: None if values[name] is None else round(values[name], digits + 1) for name, digits in _COLUMNS
    }


def no_better(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Way -> sets on which its mean absolute error is not below that of the application's mean."""
    found: dict[str, list[str]] = {}
    for row in rows:
        limit = row["ways"][APP_MEAN]["mae"]
        for name, figures in row["ways"].items():
            if name not in BASELINES and figures["mae"] >= limit:
                found.setdefault(name, []).append(row["name"])
    return found


def references(data: Path) -> dict[str, dict[str, float]]:
    """What others reach: another answer to the same prompt, and a published predictor's classes (tau alone)."""
    one, other = np.array(repeated(data), dtype=np.float64).T
    again = plain_figures(one, other)
    classes, tokens = np.array(published_classes(data), dtype=np.float64).T
    return {
        "another answer of the same model to the same prompt": {
            "mae": round(again.mae, 1),
            "mean_tokens": round(float(other.mean()), 1),
            "tau": round(again.tau, 3),
        },
        "a published BERT predictor, 5 classes": {"tau": round(plain_figures(classes, tokens).tau, 3)},
    }


def table(found: dict[str, Any]) -> str:
    """One block a set, one line a way."""
    lines = []
    for row in found["sets"]:
        lines.append(
            f"{row['name']} ({row['kind']}): {row['train_rows']} teach, {row['test_rows']} judge, "
            f"answers of {row['mean_tokens']} tokens"
        )
        lines.append(f"  {'':28}" + "".join(f"{name:>11}" for name, _ in _COLUMNS))
        for name, figures in row["ways"].items():
            cells = (
                "–" if figures[column] is None else f"{figures[column]:.{digits}f}"
                for column, digits in _COLUMNS
            )
            lines.append(f"  {name:28}" + "".join(f"{cell:>11}" for cell in cells))
    for name, sets in found["no_better_than_the_mean"].items():
        lines.append(f"{name}: no better than the mean of the application on {', '.join(sets)}")
    for name, figures in found["references"].items():
        lines.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
