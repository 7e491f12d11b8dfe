"""From what the scale benchmark measured to the rates of its model, and how well they foretell."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.scale.bytes import SIZES
from benchmarks.scale.data import DIM
from benchmarks.scale.figures import Machine, Plan
from benchmarks.scale.loads import Met
from benchmarks.scale.model import batch_seconds, estimate, merges, rows_met

ROW = DIM * SIZES["float16"]
BATCHES = (1_000, 10_000, 100_000)
NOISE = 1.5  # tables of as many items that differ by more were not measured on a quiet machine


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


def touched_bytes(found: dict[str, Any]) -> float:
    """Bytes of embeddings and norms that a cold batch of 10,000 fetches."""
    return float(found["batches"][BATCHES.index(10_000)]["reads"] * (ROW + 4))


def work_rates(found: dict[str, Any]) -> dict[str, float]:
    """Add, merge and touch of ``Machine``, as one table shows them."""
    size, search = found["compact"]["bytes"], found["search"]
    merge = found["compact"]["seconds"] / size
    return {
        # Adding merges segments of like size meanwhile.
        "add": max(0.0, found["build"]["seconds"] / size - merges(found["items"]) * merge),
        "merge": merge,
        "touch": max(0.0, search["cold"] - search["warm"]) / touched_bytes(found),
    }


def noisy(tables: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """Rates, lowest and highest, that differ more than they should between the small tables."""
    shown = [work_rates(tables[name]) for name in ("small", "wide")]
    ranges = {name: sorted(rate[name] for rate in shown) for name in ("add", "touch")}
    return {name: ends for name, ends in ranges.items() if ends[1] > NOISE * ends[0]}


def rates(tables: dict[str, dict[str, Any]], tiny: float, encode: float | None) -> Machine:
    """The rates of the small tables."""
    small, wide, pairs = tables["small"], tables["wide"], tables["pairs"]
    read, compare, query = fitted(small["batches"] + wide["batches"])
    span = (small["alone_compared"] - wide["alone_compared"]) * ROW
    call_read = max(0.0, small["alone"] - wide["alone"]) / span
    size = small["compact"]["bytes"]
    process = small["search"]["peak"] - touched_bytes(small)
    plain = (small, wide)
    work = [work_rates(found) for found in plain]
    waited = sum(found["search"]["cold"] - found["search"]["warm"] for found in plain)
    made = Machine(
        read=read,
        compare=compare,
        query=query,
        call=wide["alone"] - wide["alone_compared"] * ROW * call_read,
        call_read=call_read,
        scattered=1.0,
        call_scattered=1.0,
        opening=tiny,
        opening_byte=max(0.0, small["search"]["open"] - tiny) / size,
        merge_item=max(0.0, small["compact"]["peak"] - process - size) / small["items"],
        process=process,
        encode=encode,
        # The same work twice: whatever else ran can only have made it slower.
        add=min(each["add"] for each in work),
        merge=min(each["merge"] for each in work),
        # A difference of times, which noise makes shorter as well: both together.
        touch=max(0.0, waited) / sum(map(touched_bytes, plain)),
    )
    two = pairs["batches"][BATCHES.index(10_000)]
    even = batch_seconds(made, Met(two["reads"], two["compared"]), Plan())
    slower = (pairs["alone"] - made.call) / (pairs["alone_compared"] * ROW * call_read)
    return replace(made, scattered=two["seconds"] / even, call_scattered=slower)


def large_rates(small: Machine, large: dict[str, Any]) -> Machine:
    """The same where the large table says something else: what 100M and 1B are computed with."""
    read, compare, query = fitted(large["batches"], small.query)
    search, size = large["search"], large["compact"]["bytes"]
    process = search["peak"] - touched_bytes(large)
    return replace(
        small,
        read=read,
        compare=compare,
        query=query,
        call_read=max(0.0, large["alone"] - small.call) / (large["alone_compared"] * ROW),
        opening_byte=max(0.0, search["open"] - small.opening) / size,
        merge_item=max(0.0, large["compact"]["peak"] - process - size) / large["items"],
        process=process,
        **work_rates(large),
    )


def checked(small: Machine, skew: float, large: dict[str, Any]) -> list[dict[str, Any]]:
    """What the model says of the large table, and what that does.

    Of the large table the model is told how many items and buckets it has; rates and skew are
    those of the small ones.
    """
    plan = Plan(DIM, large["buckets"], skew=skew)
    many = replace(plan, batch=100_000)
    said, met = estimate(large["items"], plan, small), rows_met(large["items"], plan)
    search, compact = large["search"], large["compact"]
    batches = {batch["queries"]: batch for batch in large["batches"]}
    fetched = met.read * (ROW + 4)
    pairs = [
        ("files", "MB", said.disk / 1e6, compact["bytes"] / 1e6),
        ("items scanned a query", "", said.scanned, batches[100_000]["scanned"]),
        *((f"rows read by a batch of {size:,}", "",
           rows_met(large["items"], replace(plan, batch=size)).read, batch["reads"])
          for size, batch in batches.items()),
        ("open, warm", "ms", said.opening * 1e3, search["open"] * 1e3),
        ("batch of 10,000, warm", "q/s", said.rate, 10_000 / batches[10_000]["seconds"]),
        ("batch of 100,000, warm", "q/s", estimate(large["items"], many, small).rate,
         100_000 / batches[100_000]["seconds"]),
        ("batch of 10,000, cold", "q/s", 10_000 / (10_000 / said.rate + fetched * small.touch),
         10_000 / search["cold"]),
        ("one query, warm", "µs", said.latency * 1e6, large["alone"] * 1e6),
        ("add and merge everything", "s", said.build,
         large["build"]["seconds"] + compact["seconds"]),
        ("memory of a search", "MB", (small.process + fetched) / 1e6, search["peak"] / 1e6),
        ("memory of the last merge", "MB", said.merging_memory / 1e6, compact["peak"] / 1e6),
    ]  # fmt: skip
    names = ("name", "unit", "model", "measured")
    return [dict(zip(names, pair, strict=True)) for pair in pairs]


def bars(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Bar 4 of issue 7: how fast the large table opens, and items scanned a second against 1M."""

    def scanned_rate(name: str, size: int) -> float:
        batch = tables[name]["batches"][BATCHES.index(size)]
        return float(batch["queries"] * batch["scanned"] / batch["seconds"])

    def against(name: str) -> dict[str, float]:
        return {str(s): scanned_rate("large", s) / scanned_rate(name, s) for s in BATCHES[1:]}

    return {
        "open": tables["large"]["search"]["open"],
        "open_cold": tables["large"]["search"]["open_cold"],
        "same_buckets": against("wide"),
        "same_load": against("small"),
    }


def summary(tables: dict[str, dict[str, Any]], tiny: float, encode: float | None) -> dict[str, Any]:
    """All that is computed from what was measured."""
    small = rates(tables, tiny, encode)
    return {
        "rates_small": asdict(small),
        "rates": asdict(large_rates(small, tables["large"])),
        # A table of a million with as many buckets is what one has before there are ten.
        "check": checked(small, tables["wide"]["skew"], tables["large"]),
        "bars": bars(tables),
        "noisy": noisy(tables),
    }
