"""Claim: of ten thousand classes each shares a bucket with others like it, and is still found.

    python -m benchmarks.glyphs.run FONTS --out RUN [--steps 1000] [--head-steps 600] [--seeds 3]

FONTS is a folder with the faces, of Debian's packages fonts-noto-cjk, fonts-nanum,
fonts-nanum-extra, fonts-baekmuk and fonts-unfonts-core (`/usr/share/fonts` where they are
installed). `--pecos PYTHON` is an interpreter that has the package libpecos. RUN keeps pictures,
trunk, embeddings, heads and figures: the same command goes on where it was interrupted. Writes
docs/results/glyphs.md from what RUN holds; `--page` writes it from what is there, and stops.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.glyphs.data import COUNT, FACES, HELD_OUT, open_glyphs, parts_of
from benchmarks.glyphs.heads import (
    BLOCK,
    FlowTraining,
    Head,
    Metric,
    adapted_head,
    flow_head,
    linear_head,
    means_head,
    pecos_figures,
    random_codes,
    start_head,
    whitened_metric,
)
from benchmarks.glyphs.page import page_of
from benchmarks.glyphs.trunk import DIM, embedded, trained_trunk
from benchmarks.measurement import RESULTS, machine
from flowhash.codes import topk_codes
from flowhash.learn.discriminant import discriminant
from flowhash.quality import LabelledTable, Queries, measure

BUCKETS, ACTIVE = 2_048, (1, 2)
# Of IVF, for what it finds at any scan.
LISTS, PROBES = (1_024, 2_048, 4_096), (1, 2, 3, 4, 6, 8, 16)
CLASSIFIERS = ("trunk", "softmax")
OPENED = (1, 2, 4)  # buckets that queries open where more than k are tried
LOADED = 100  # steps of a training that only loads are asked of: each class comes twice


@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings with labels, of length √dim, so that numbers are about one."""

    vectors: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Search:
    """A table, and what it is asked, by name; ``own`` where the queries are items of the table."""

    table: Rows
    asked: dict[str, Rows]
    own: NDArray[np.int64] | None
    tops: tuple[int, ...]

    def measured(self, head: Head, active: int) -> dict[str, Any]:
        """For each kind of queries SUF, Pr@K in percent, buckets used, variation of their loads."""
        return self.opened(head, active, (active,))[str(active)]

    def opened(self, head: Head, active: int, probes: tuple[int, ...]) -> dict[str, Any]:
        """The same where queries open so many buckets, by their number."""
        table = self.table
        ranked = head.embedded(table.vectors)
        index = LabelledTable(
            len(head.weights), ranked.shape[1], active, int(table.labels.max()) + 1
        )
        codes = [topk_codes(head.scores(rows), active) for rows in _blocks(table.vectors)]
        index.add(np.concatenate(codes), ranked, table.labels)
        made: dict[str, Any] = {str(probe): {} for probe in probes}
        for probe in probes:
            for name, queries in self.asked.items():
                found = measure(index, self._queries(head, queries), self.tops, probe=probe)
                made[str(probe)][name] = {
                    "suf": found.speed_up,
                    **{f"pr{top}": 100 * value for top, value in found.precision.items()},
                    "used": 100 * float((index.loads > 0).mean()),
                    "variation": float(index.loads.std() / index.loads.mean()),
                }
        return made

    def _queries(self, head: Head, queries: Rows) -> Iterator[Queries]:
        for start in range(0, len(queries.labels), BLOCK):
            part = slice(start, start + BLOCK)
            own = None if self.own is None else self.own[part]
            rows = queries.vectors[part]
            yield Queries(head.scores(rows), head.embedded(rows), queries.labels[part], own)

    def exhaustive(self, metric: Metric | None = None) -> dict[str, Any]:
        """Of all items, by FAISS."""
        ranked = self.table.vectors if metric is None else metric.of(self.table.vectors)
        index = faiss.IndexFlatL2(ranked.shape[1])
        index.add(ranked)
        made = {}
        for name, queries in self.asked.items():
            rows = queries.vectors if metric is None else metric.of(queries.vectors)
            ids = index.search(rows, max(self.tops) + 1)[1]
            if self.own is not None:
                others = ids != self.own[:, None]
                others[others.all(axis=1), -1] = False  # one that is not among its own nearest
                ids = ids[others].reshape(len(ids), -1)
            right = self.table.labels[ids[:, : max(self.tops)]] == queries.labels[:, None]
            shares = {f"pr{top}": 100 * float(right[:, :top].mean()) for top in self.tops}
            made[name] = {"suf": 1.0, **shares}
        return made

    def accuracy(self, head: Head) -> dict[str, float]:
        """How often the best bucket is the class, in percent, where buckets are classes."""
        return {
            name: 100 * float((head.scores(rows.vectors).argmax(axis=1) == rows.labels).mean())
            for name, rows in self.asked.items()
        }


def _blocks(rows: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]


class Figures:
    """What was measured, kept in a file after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """What is there, or what is made now."""
        if name not in self.values:
            made = make()
            if self.path.exists():  # another process may measure other things
                self.values = json.loads(self.path.read_text())
            self.values[name] = made
            self.path.write_text(json.dumps(self.values, indent=1))
            print(name, self.values[name], flush=True)
        return self.values[name]


def facts(head: Head) -> dict[str, Any]:
    """What is known of a head before anything is searched."""
    made: dict[str, Any] = {"parameters": head.parameters if head.trained else None}
    made |= {"seconds": head.seconds, "solver": head.solver}
    if head.loads is not None:
        made["codes_used"] = 100 * float((head.loads > 0).mean())
        made["codes_variation"] = float(head.loads.std() / head.loads.mean())
    return made


def searches_of(parts: dict[str, Rows], renderings: int) -> dict[str, Search]:
    """Seen characters, asked in two ways, and unseen ones among themselves."""
    tops = (1, 4, 16) if renderings * HELD_OUT > 16 else (1, 4)
    unseen = parts["unseen"]
    every = np.arange(len(unseen.labels))
    return {
        "seen": Search(parts["train"], {name: parts[name] for name in ("new", "face")}, None, tops),
        "unseen": Search(unseen, {"unseen": unseen}, every, tops),
    }


def measure_rivals(
    searches: dict[str, Search], parts: dict[str, Rows], figures: Figures, told: Any, classes: Any
) -> None:
    """Everything but FlowHash."""
    train, count = parts["train"], int(parts["train"].labels.max()) + 1
    metric = whitened_metric(train.vectors, train.labels)
    for name, search in searches.items():
        figures.keep(f"{name}/exhaustive", search.exhaustive)
        figures.keep(f"{name}/exhaustive-whitened", lambda s=search: s.exhaustive(metric))
    heads: dict[str, tuple[tuple[int, ...], Callable[[], Head]]] = {
        "trunk": (ACTIVE, lambda: Head(classes, np.zeros(len(classes), np.float32))),
        "start": (ACTIVE, lambda: start_head(
            FlowTraining(BUCKETS, 1, 0, told.head_steps), (train.vectors, train.labels)
        )),
        "softmax": (ACTIVE, lambda: linear_head(
            train.vectors, train.labels, np.arange(count)[:, None], count, told.head_steps,
            discriminant(train.vectors, train.labels),
        )),
        "means-table": (ACTIVE, lambda: means_head(parts["unseen"].vectors, BUCKETS)),
        **{
            f"mach{active}": ((active,), lambda active=active: linear_head(
                train.vectors, train.labels, random_codes(count, BUCKETS, active), BUCKETS,
                told.head_steps,
            ))
            for active in ACTIVE
        },
        "means-train": (ACTIVE, lambda: means_head(train.vectors, BUCKETS)),
        "means-fifth": (ACTIVE, lambda: means_head(train.vectors, count // 5)),
    }  # fmt: skip
    for name, (actives, make) in heads.items():
        measure_head(name, actives, make, searches, figures, metric)
    for name, given in (("plain", None), ("whitened", metric)):
        measure_lists(searches["unseen"], figures, name, given)
    if told.pecos is not None:
        arrays = {"rows": train.vectors, "labels": train.labels}
        for name, rows in searches["seen"].asked.items():
            arrays |= {name: rows.vectors, f"{name}_labels": rows.labels}
        figures.keep("pecos", lambda: pecos_figures(told.pecos, told.out, arrays))


def measure_head(
    name: str, actives: tuple[int, ...], make: Callable[[], Head], searches: dict[str, Search],
    figures: Figures, metric: Metric,
) -> None:  # fmt: skip
    """All searches with one head, where they are not known yet."""
    # Seen characters are the training items: fitted on the table is fitted on train.
    places = ["unseen"] if name == "means-table" else list(searches)
    wanted = [name, *(f"{place}/{name}/{k}" for place in places for k in actives)]
    if all(key in figures.values for key in wanted):
        return
    head = make()
    figures.keep(name, lambda: facts(head))
    if name in CLASSIFIERS:
        figures.keep(f"accuracy/{name}", lambda: searches["seen"].accuracy(head))
    for k in actives:
        for place in places:
            search, more = searches[place], name == "softmax" and place == "seen"
            made = search.opened(head, k, (1, 2) if more else (k,))
            figures.keep(f"{place}/{name}/{k}", lambda m=made, k=k: m[str(k)])
            if more:
                figures.keep(f"opened/seen/{name}{k}-0", lambda m=made: m)
                ranked = replace(head, metric=metric)
                figures.keep(
                    f"seen/{name}-whitened/{k}", lambda s=search, h=ranked, k=k: s.measured(h, k)
                )


def measure_lists(search: Search, figures: Figures, name: str, metric: Metric | None) -> None:
    """IVF on the unseen characters, at several scans."""
    for lists in LISTS:
        figures.keep(
            f"lists/{name}/{lists}",
            lambda n=lists: search.opened(means_head(search.table.vectors, n, metric), 1, PROBES),
        )


def plans_of(told: Any, classes: int) -> dict[str, FlowTraining]:
    """FlowHash's trainings, by name: what is compared, how many buckets, k and seed."""
    before = {"start": "random", "classes": 64, "items": 4, "rate": 5e-3}
    plans = {}
    for seed in range(told.seeds):
        for k in ACTIVE:
            plans[f"flow{k}-{seed}"] = FlowTraining(BUCKETS, k, seed, told.head_steps)
            plans[f"fifth{k}-{seed}"] = FlowTraining(classes // 5, k, seed, told.head_steps)
    for k in ACTIVE:
        steps = told.head_steps
        plans[f"flowwhite{k}-0"] = FlowTraining(BUCKETS, k, 0, steps, rank="whitened")
        plans[f"before{k}-0"] = FlowTraining(BUCKETS, k, 0, 2 * steps, before)
    return plans


def measure_flows(
    searches: dict[str, Search], parts: dict[str, Rows], figures: Figures, told: Any
) -> None:
    """FlowHash, seed after seed; and once as it was before, to see what the start is worth.

    Whatever has d buckets is also fitted to the table of the unseen characters.
    """
    pairs = [(parts[name].vectors, parts[name].labels) for name in ("train", "validation")]
    unseen = searches["unseen"]
    for name, plan in plans_of(told, int(parts["train"].labels.max()) + 1).items():
        places = [*searches, *(f"opened/{place}" for place in searches)]
        wanted = [name, *(f"{place}/{name}" for place in places)]
        adapts = name.startswith("flow")
        if adapts:
            wanted += [f"adapted/{name}", f"opened/adapted/{name}"]
        if all(key in figures.values for key in wanted):
            continue
        encoder, head, checked = flow_head(plan, told.out / "heads" / name, *pairs)
        figures.keep(name, lambda h=head, c=checked: {**facts(h), "validation": c})
        for place, search in searches.items():
            made = search.opened(head, plan.active, OPENED)
            figures.keep(f"{place}/{name}", lambda m=made, k=plan.active: m[str(k)])
            figures.keep(f"opened/{place}/{name}", lambda m=made: m)
        if adapts:
            fitted = adapted_head(encoder, head, unseen.table.vectors, plan.seed)
            made = unseen.opened(fitted, plan.active, OPENED)
            figures.keep(f"adapted/{name}", lambda h=fitted: facts(h))
            figures.keep(f"opened/adapted/{name}", lambda m=made: m)


def measure_all_classes(parts: dict[str, Rows], figures: Figures, told: Any, faces: Any) -> None:
    """How even the codes of all 11,172 characters are, as classes: no search, only loads."""
    train, unseen = parts["train"], parts["unseen"]
    inside = faces != HELD_OUT
    labels = np.concatenate((train.labels, train.labels.max() + 1 + unseen.labels[inside]))
    vectors = np.concatenate((train.vectors, unseen.vectors[inside]))
    held = (parts["validation"].vectors[:400], parts["validation"].labels[:400])  # only to run
    for k in ACTIVE:
        name = f"all{k}-0"
        if name not in figures.values:
            plan = FlowTraining(BUCKETS, k, 0, LOADED)
            _, head, _ = flow_head(plan, told.out / "heads" / name, (vectors, labels), held)
            figures.keep(name, lambda h=head: facts(h))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000, help="of the trunk")
    parser.add_argument("--head-steps", type=int, default=600, help="of each head")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--renderings", type=int, default=3, help="of a character in a face")
    parser.add_argument("--characters", type=int, default=COUNT, help="fewer, for a trial")
    parser.add_argument("--pecos", type=Path, help="an interpreter with libpecos")
    parser.add_argument("--only", nargs="*", default=["flows", "rivals", "all"])
    parser.add_argument("--page", action="store_true", help="only write the page")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    figures = Figures(told.out / "figures.json")
    if not told.page:
        glyphs = open_glyphs(told.fonts, told.out / "pictures.npy", told.characters)
        trunk, classes, spent = trained_trunk(glyphs, told.out, told.steps)
        parts = {}
        for name, part in parts_of(glyphs, told.renderings).items():
            path = told.out / f"{name}-{told.renderings}.npy"
            known = glyphs.unseen if name == "unseen" else glyphs.seen
            labels = np.searchsorted(known, part.characters)
            parts[name] = Rows(embedded(trunk, glyphs, part, path) * DIM**0.5, labels)
        searches = searches_of(parts, told.renderings)
        sizes = {name: len(rows.labels) for name, rows in parts.items()}
        figures.keep("about", lambda: {
            "trunk_seconds": spent, "sizes": sizes, "steps": told.steps,
            "head_steps": told.head_steps, "renderings": told.renderings,
            "asked": {
                name: len(rows.labels)
                for search in searches.values() for name, rows in search.asked.items()
            },
            "seen": len(glyphs.seen), "unseen": len(glyphs.unseen), "dim": DIM,
            "buckets": BUCKETS, "faces": list(FACES), "load": os.getloadavg(),
        })  # fmt: skip
        if "flows" in told.only:
            measure_flows(searches, parts, figures, told)
        if "rivals" in told.only:
            measure_rivals(searches, parts, figures, told, classes.numpy())
        if "all" in told.only:
            faces = parts_of(glyphs, told.renderings)["unseen"].faces
            measure_all_classes(parts, figures, told, faces)
    (RESULTS / "glyphs.md").write_text(page_of(figures.values, machine(), told.seeds))


if __name__ == "__main__":
    main()
