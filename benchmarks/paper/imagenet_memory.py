"""The memory that encoding all of ImageNet32 takes, without the data set and without training.

    python -m benchmarks.paper.imagenet_memory [--images 1281167] [--nin] [--folder FOLDER]

It makes files of random pixels in the official layout (``train_data_batch_1.npz`` to ``_10.npz``
and ``val_data.npz``: data, labels from 1, mean), opens them in a process of its own and sends every
image through ``Encodings``, both as ``reproduce`` does, and prints the largest memory that this
process had: VmHWM, which counts mapped files too. The network is tiny, an average pool to
the 192 features that NIN makes and a new last layer of 512 outputs, ImageNet's largest: what it
writes is as large as the real one's, but it takes few minutes. NIN's own activations, of 500 images
at a time, are not in the figure; ``--nin --images 2000`` shows what they take, because memory does
not grow with the number of images.

Claim: 1.28 million images take under 3 GB. It exits with 1 where they do not. Eight gigabytes of
disk are needed, in the temporary folder by default, and given back.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from torch import nn

from benchmarks.measurement import ROOT, peak_memory
from flowhash.data import imagenet32
from flowhash.evaluate import Encodings
from flowhash.networks import EmbeddingNetwork, build_backbone, custom_backbone

IMAGES, TESTED, CLASSES, PIXELS, OUTPUTS = 1_281_167, 50_000, 1_000, 3_072, 512
BAR = 3e9  # bytes


def write_files(folder: Path, images: int) -> None:
    """The eleven files, uncompressed: the others are converted to such ones first."""
    rng = np.random.default_rng(0)
    names = [f"train_data_batch_{number}" for number in range(1, 11)]
    shares = [len(part) for part in np.array_split(np.arange(images), 10)]
    counts = [*shares, min(TESTED, images)]
    for name, count in zip([*names, "val_data"], counts, strict=True):
        content = {
            "data": rng.integers(0, 256, (count, PIXELS), np.uint8),
            "labels": rng.integers(1, CLASSES + 1, count),
        }
        if name != "val_data":
            content["mean"] = np.full(PIXELS, 127.5)
        np.savez(folder / f"{name}.npz", **content)


def encode(folder: Path, nin: bool) -> None:
    """Open the files and encode every image; prints what it came to, as JSON."""
    began = time.perf_counter()
    imported = peak_memory()
    splits = imagenet32(folder, per_class=IMAGES)  # all of file 10, so that no image is left out
    opened = peak_memory()
    pool = custom_backbone(nn.Sequential(nn.AvgPool2d(4), nn.Flatten()), features=192)
    network = EmbeddingNetwork(build_backbone({"name": "nin"}) if nin else pool, OUTPUTS)
    encodings = Encodings(folder / "encoded", splits.preprocessing, "cpu", quiet=True)
    assert splits.test is not None
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    made = [encodings.outputs(items, name, network) for name, items in named.items()]
    assert [part.shape for part in made] == [(len(items), OUTPUTS) for items in named.values()]
    found = {
        "images": sum(map(len, named.values())), "imported": imported, "opened": opened,
        "peak": peak_memory(), "seconds": time.perf_counter() - began,
        "read": sum(path.stat().st_size for path in folder.glob("*.npz")),
        "written": sum(path.stat().st_size for path in (folder / "encoded").glob("*.npy")),
    }  # fmt: skip
    print(json.dumps(found))


def main() -> None:
    """Make the files, measure in another process, say what it came to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=IMAGES, help="in the ten training files")
    parser.add_argument("--nin", action="store_true", help="the paper's network, untrained")
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed again")
    parser.add_argument("--encode", type=Path, help=argparse.SUPPRESS)  # the process of its own
    options = parser.parse_args()
    if options.encode is not None:
        encode(options.encode, options.nin)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        write_files(Path(name), options.images)
        command = [sys.executable, "-m", "benchmarks.paper.imagenet_memory", "--encode"]
        command += [str(Path(name).resolve()), *["--nin"] * options.nin]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{found['images']:,} images, {found['read'] / 1e9:.2f} GB read and "
        f"{found['written'] / 1e9:.2f} GB written in {found['seconds']:.0f} s: peak memory "
        f"{found['peak'] / 1e9:.2f} GB (imports {found['imported'] / 1e9:.2f}, files opened "
        f"{found['opened'] / 1e9:.2f}); bar {BAR / 1e9:.0f} GB"
    )
    if found["peak"] >= BAR:
        sys.exit(1)


if __name__ == "__main__":
    main()
