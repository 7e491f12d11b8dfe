"""Writes cases.json: twenty small random cases with the answers that the rules give by hand.

    python -m tests.quality.make_cases

The answers are fractions, so that no rounding is in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.quality.rules import by_hand

PATH = Path(__file__).with_name("cases.json")
TOPS = (1, 2, 4)


def make(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    buckets, itself = int(rng.integers(2, 6)), seed % 2 == 0
    count = int(rng.integers(6, 11))

    def some(number: int) -> list[dict[str, Any]]:
        return [
            {
                "activations": rng.integers(-9, 10, buckets).tolist(),
                "embedding": rng.integers(-20, 21, 2).tolist(),
                "label": int(rng.integers(0, 3)),
            }
            for _ in range(number)
        ]

    items = some(count)
    case: dict[str, Any] = {
        "items": items,
        "queries": items if itself else some(4),
        "itself": itself,
        "active": int(rng.integers(1, buckets)),
    }
    case["answers"] = {
        str(top): {name: str(value) for name, value in by_hand(case, top).items()} for top in TOPS
    }
    return case


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(make(seed)) for seed in range(20))
    PATH.write_text(f"[\n{lines}\n]\n")
