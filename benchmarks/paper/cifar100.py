"""Claim: on a cross-entropy base of CIFAR-100 two cores learn buckets that beat exhaustive search.

In 45 minutes, on the real images. The paper's base is trained by triplet or npairs instead
(``flowhash reproduce cifar100 --preset method``). The base's own classifier, whose row stands
beside the buckets, beats exhaustive search too.

    python -m benchmarks.paper.cifar100 DATA --out RUN [--preset cpu-cifar100-npairs] [--seed 0]

DATA is a folder that holds the official archive, packed or not. Trains both stages (an interrupted
run goes on), then searches each test image among the others: exhaustively by the base embedding,
and through the table. Writes docs/results/cifar100-<loss>-two-core.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.measurement import RESULTS, machine
from flowhash.data import LabelledItems, cifar100
from flowhash.encoder import Encoder
from flowhash.learn import Checkpoints, Settings, Stage, preset, train
from flowhash.quality import Quality, search_quality

TOPS = (1, 4, 16)
PAGE = """\
# CIFAR-100 on two cores, Algorithm 1 on a base by {trained}: {loss}, d = {buckets}, k = {active}

Written by the command below; do not edit by hand. Machine: {machine}.

<!-- not run: 45 minutes of training -->
```sh
{command}
```

Each of the 10,000 test images is searched among the other 9,999, seed {seed}, one run. Checkpoints
are picked on 5,000 validation images, training sees the other 45,000.

| search | Pr@1 | Pr@4 | Pr@16 | SUF | NMI |
|---|---:|---:|---:|---:|---:|
| exhaustive, base embedding | {base} | 1.0 | |
| through the table, k = {active} | {hash} | {suf:.2f} | {nmi} |
{classifier}

The last row is the honest rival where all classes are known: stage 1's own classifier, each of its
classes a bucket, ranked by the same embedding.

Bars: Pr@1 through the table at least exhaustive's ({precision_bar}); SUF at least {suf_bar}
({suf_met}); both stages within 45 minutes: base {base_minutes:.1f}, hash {hash_minutes:.1f},
together **{minutes:.1f} minutes** with validation ({time_met}).

## How it was trained

{stages}

{loads}
"""


def row(quality: Quality) -> str:
    """Precision in per cent."""
    return " | ".join(f"{100 * quality.precision[top]:.2f}" for top in TOPS)


def minutes(folder: Path, stage: str) -> float:
    """How long a stage ran, interruptions left out."""
    return float(json.loads((folder / stage / "last.json").read_text())["seconds"]) / 60


def described(name: str, stage: Stage, settings: Settings) -> str:
    """One line on a stage."""
    options = "".join(f" ({name} {value})" for name, value in stage.loss_options.items())
    return (
        f"- {name}: {settings.backbone['name']} network, {stage.loss}{options}, "
        f"{stage.outputs} outputs, {stage.steps:,} steps of {stage.classes} classes × "
        f"{stage.items}, {stage.optimiser} at {stage.rate} (backbone × {stage.backbone_rate}), "
        f"schedule {stage.schedule.kind}"
    )


def evaluate(encoder: Encoder, items: LabelledItems) -> tuple[Quality, Quality]:
    """Exhaustive search by the base embedding, and search through the table."""
    found, labels = encoder.encode(items), items.labels
    everything = np.zeros((len(found), 1), np.float32)
    base = search_quality(everything, found.embeddings, labels, 1, TOPS)
    through = search_quality(found.activations, found.embeddings, labels, encoder.active, TOPS)
    return base, through


def classifier(encoder: Encoder, folder: Path, items: LabelledItems) -> str:
    """The row of stage 1's classifier: its most likely class is the bucket."""
    checkpoint = Checkpoints(folder / "base").load("best")
    assert checkpoint is not None
    found = encoder.encode(items)
    weights = torch.nn.functional.normalize(checkpoint.part("loss")["weight"]).numpy()
    scores = found.embeddings @ weights.T
    quality = search_quality(scores, found.embeddings, items.labels, 1, TOPS)
    nmi = "" if quality.nmi is None else f"{100 * quality.nmi:.2f}"
    return f"| stage 1's classifier, k = 1 | {row(quality)} | {quality.speed_up:.2f} | {nmi} |"


def main() -> None:
    """Train, search, print, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="cpu-cifar100-npairs")
    parser.add_argument("--active", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(2)
    splits = cifar100(options.data)
    settings = preset(options.preset, active=options.active, seed=options.seed)
    encoder = train(splits, settings, options.out)
    assert splits.test is not None
    base, through = evaluate(encoder, splits.test)
    loss, buckets = settings.hash.loss, settings.hash.outputs
    suf_bar = 85 if loss == "triplet" else 45
    both = [minutes(options.out, stage) for stage in ("base", "hash")]
    rival = ""
    if settings.base is not None and settings.base.loss == "cross-entropy":
        rival = classifier(encoder, options.out, splits.test)
    stages = [described("hash", settings.hash, settings)]
    if settings.base is not None:
        stages.insert(0, described("base", settings.base, settings))
    loads = np.sort(through.loads)
    text = PAGE.format(
        trained="given networks" if settings.base is None else settings.base.loss,
        loss=loss, buckets=buckets, active=settings.active, seed=settings.seed,
        machine=machine(),
        command=f"python -m benchmarks.paper.cifar100 DATA --out RUN --preset {options.preset} "
        f"--active {settings.active} --seed {settings.seed}",
        base=row(base), hash=row(through), classifier=rival, suf=through.speed_up,
        nmi="" if through.nmi is None else f"{100 * through.nmi:.2f}",
        precision_bar=met(through.precision[1] >= base.precision[1]),
        suf_bar=suf_bar, suf_met=met(through.speed_up >= suf_bar),
        base_minutes=both[0], hash_minutes=both[1], minutes=sum(both),
        time_met=met(sum(both) <= 45),
        stages="\n".join([*stages, f"- λ = {settings.penalty}, k = {settings.active}"]),
        loads=f"Test images in a bucket: {loads[0]} to {loads[-1]}, median {np.median(loads):.0f}; "
        f"{int((loads == 0).sum())} of {buckets} buckets are empty.",
    )  # fmt: skip
    print(text)
    (RESULTS / f"cifar100-{loss}-two-core.md").write_text(text)


def met(holds: bool) -> str:
    """What stands beside a bar."""
    return "met" if holds else "**not met**"


if __name__ == "__main__":
    main()
