"""From what the scale benchmark measured to the rates of its model, and how well they foretell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from scale_bytes import SIZES
from scale_data import DIM
from scale_model import Machine, Plan, batch_seconds, estimate

ROW = DIM * SIZES["float16"]
BATCHES = (1_000, 10_000, 100_000)


def fitted(batches: list[dict[str, float]], known: float | None = None) -> list[float]:
    """Read, compare and query of ``Machine``: least squares of relative errors, none negative.

    The batches of one table cannot tell what a query costs from what it compares: with ``known``
    the former is given.
    """
    rows = [[b["reads"] * ROW, b["queries"] * b["compared"] * DIM, b["queries"]] for b in batches]
    times = np.array([batch["seconds"] for batch in batches])
    terms = np.array(rows) / times[:, None]
    if known is None:
        return list(map(float, nnls(terms, np.ones(len(times)))[0]))
    return [*map(float, nnls(terms[:, :2], 1 - known * terms[:, 2])[0]), known]


def rates(tables: dict[str, dict[str, Any]], tiny: float, encode: float | None) -> Machine:
    """The rates of the small tables."""
    small, wide, pairs = tables["small"], tables["wide"], tables["pairs"]
    read, compare, query = fitted(small["batches"] + wide["batches"])
    span = (small["alone_compared"] - wide["alone_compared"]) * ROW
    call_read = max(0.0, small["alone"] - wide["alone"]) / span
    size = small["compact"]["bytes"]
    batch = small["batches"][BATCHES.index(10_000)]
    touched = batch["reads"] * (ROW + 4)
    process = small["search"]["peak"] - touched
    made = Machine(
        read=read,
        compare=compare,
        query=query,
        call=wide["alone"] - wide["alone_compared"] * ROW * call_read,
        call_read=call_read,
        scattered=1.0,
        call_scattered=1.0,
        touch=max(0.0, small["search"]["cold"] - small["search"]["warm"]) / touched,
        opening=tiny,
        opening_byte=max(0.0, small["search"]["open"] - tiny) / size,
        add=small["build"]["seconds"] / size,
        merge=small["compact"]["seconds"] / size,
        merge_item=max(0.0, small["compact"]["peak"] - process - size) / small["items"],
        process=process,
        encode=encode,
    )
    two = pairs["batches"][BATCHES.index(10_000)]
    plain = batch_seconds(made, two["reads"], two["compared"], Plan())
    slower = (pairs["alone"] - made.call) / (pairs["alone_compared"] * ROW * call_read)
    return replace(made, scattered=two["seconds"] / plain, call_scattered=slower)


def large_rates(small: Machine, large: dict[str, Any]) -> Machine:
    """The same where the large table says something else: what 100M and 1B are computed with."""
    read, compare, query = fitted(large["batches"], small.query)
    batch, search = large["batches"][BATCHES.index(10_000)], large["search"]
    touched, size = batch["reads"] * (ROW + 4), large["compact"]["bytes"]
    process = search["peak"] - touched
    return replace(
        small,
        read=read,
        compare=compare,
        query=query,
        call_read=max(0.0, large["alone"] - small.call) / (large["alone_compared"] * ROW),
        touch=max(0.0, search["cold"] - search["warm"]) / touched,
        opening_byte=max(0.0, search["open"] - small.opening) / size,
        merge=large["compact"]["seconds"] / size,
        merge_item=max(0.0, large["compact"]["peak"] - process - size) / large["items"],
        process=process,
    )


def checked(small: Machine, large: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model says of the large table, with rates of the small ones, and what that does."""
    plan = Plan(DIM, large["buckets"], skew=large["skew"])
    said = estimate(large["items"], plan, small)
    search, compact = large["search"], large["compact"]
    batches = {batch["queries"]: batch for batch in large["batches"]}
    many = replace(plan, batch=100_000)
    pairs = [
        ("files", "MB", said.disk / 1e6, compact["bytes"] / 1e6),
        ("items scanned a query", "", said.scanned, batches[100_000]["scanned"]),
        ("open, warm", "ms", said.opening * 1e3, search["open"] * 1e3),
        ("batch of 10,000, warm", "q/s", said.rate, 10_000 / batches[10_000]["seconds"]),
        ("batch of 100,000, warm", "q/s", estimate(large["items"], many, small).rate,
         100_000 / batches[100_000]["seconds"]),
        ("batch of 10,000, cold", "q/s",
         10_000 / (10_000 / said.rate + batches[10_000]["reads"] * (ROW + 4) * small.touch),
         10_000 / search["cold"]),
        ("one query, warm", "µs", said.latency * 1e6, large["alone"] * 1e6),
        ("add and merge everything", "s", said.build,
         large["build"]["seconds"] + compact["seconds"]),
        ("memory of a search", "MB",
         (small.process + batches[10_000]["reads"] * (ROW + 4)) / 1e6, search["peak"] / 1e6),
        ("memory of the last merge", "MB", said.merging_memory / 1e6, compact["peak"] / 1e6),
    ]  # fmt: skip
    names = ("name", "unit", "model", "measured")
    return [dict(zip(names, pair, strict=True)) for pair in pairs]
