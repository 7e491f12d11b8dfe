"""Pictures of the 11,172 Hangul syllables in several faces, and which of them are held out.

The faces are those of Debian's packages fonts-noto-cjk, fonts-nanum, fonts-nanum-extra,
fonts-baekmuk and fonts-unfonts-core: install them, or unpack them into one folder without
installing (``apt-get download``, then ``dpkg-deb -x PACKAGE FOLDER``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

FIRST, COUNT = 0xAC00, 11_172  # the syllables in Unicode, all that there are
# Files, and which of the faces in a collection. The last one is held out.
FACES = {
    "Noto Sans KR": ("NotoSansCJK-Regular.ttc", 1),
    "Noto Serif KR": ("NotoSerifCJK-Regular.ttc", 1),
    "Nanum Gothic": ("NanumGothic.ttf", 0),
    "Nanum Myeongjo": ("NanumMyeongjo.ttf", 0),
    "Baekmuk Batang": ("batang.ttf", 0),
    "Un Dotum": ("UnDotum.ttf", 0),
    "Un Gungseo": ("UnGungseo.ttf", 0),
    "Nanum Barunpen": ("NanumBarunpenR.ttf", 0),
}
HELD_OUT = len(FACES) - 1
CANVAS, SIZE, PIXELS = 48, 38, 32  # side of a stored picture, of the letter in it, of an item
VIEW = 46  # pixels of a stored picture that an item shows, before it is scaled
SCALES, SHIFT = (0.85, 1.15), 2.0  # of a letter, at random; pixels of an item
UNSEEN = 5  # one of so many characters is held out
ASKED = 4_000  # queries of a kind, at most
BLOCK = 1_024  # pictures that are made at once


@dataclass(frozen=True, eq=False)
class Glyphs:
    """Which pictures there are, each once and whole.

    Attributes:
        pictures: of each character in each face [characters, faces, side, side] uint8.
        seen: characters that are trained on.
        unseen: the others.
    """

    pictures: NDArray[np.uint8]
    seen: NDArray[np.int64]
    unseen: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """Items of one kind: which character in which face each is, and the seed that moves them."""

    characters: NDArray[np.int64]
    faces: NDArray[np.int64]
    seed: int

    def __len__(self) -> int:
        return len(self.characters)


def open_glyphs(fonts: Path, cache: Path, characters: int = COUNT) -> Glyphs:
    """The pictures of all faces, drawn once and kept; and the characters by lot.

    Args:
        fonts: a folder that holds the files somewhere.
        cache: a file of numpy's to keep them in.
        characters: how many, for a trial with fewer; drawn by lot.
    """
    if not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        drawn = np.stack([_drawn(_file(fonts, name), face) for name, face in FACES.values()], 1)
        np.save(cache, drawn)
    pictures = np.load(cache, allow_pickle=False)
    order = np.random.default_rng(0).permutation(COUNT)[:characters]
    held = characters // UNSEEN
    return Glyphs(pictures, np.sort(order[held:]), np.sort(order[:held]))


def _file(fonts: Path, name: str) -> Path:
    found = sorted(fonts.rglob(name))
    if not found:
        raise SystemExit(f"no {name} below {fonts}; the packages are in benchmarks/glyphs/data.py")
    return found[0]


def _drawn(path: Path, face: int) -> NDArray[np.uint8]:
    """Each syllable in the middle of a canvas [characters, side, side]."""
    font = ImageFont.truetype(str(path), SIZE, index=face)
    made = np.zeros((COUNT, CANVAS, CANVAS), np.uint8)
    for number in range(COUNT):
        image, letter = Image.new("L", (CANVAS, CANVAS)), chr(FIRST + number)
        left, top, right, bottom = font.getbbox(letter)
        place = ((CANVAS - left - right) // 2, (CANVAS - top - bottom) // 2)
        ImageDraw.Draw(image).text(place, letter, 255, font)
        made[number] = np.asarray(image)
    blank = np.flatnonzero(made.reshape(COUNT, -1).max(axis=1) == 0)
    if len(blank) or len(np.unique(made.reshape(COUNT, -1), axis=0)) < COUNT * 0.99:
        raise SystemExit(f"{path.name} does not hold all syllables: {len(blank)} are blank")
    return made


def moved(pictures: NDArray[np.uint8], rng: np.random.Generator) -> Tensor:
    """Pictures [n, side, side] shifted, scaled and blurred at random: [n, 1, pixels, pixels]."""
    count = len(pictures)
    scale = VIEW / CANVAS / rng.uniform(*SCALES, count).astype(np.float32)
    shift = rng.uniform(-SHIFT, SHIFT, (count, 2)).astype(np.float32) * 2 / PIXELS
    places = np.zeros((count, 2, 3), np.float32)
    places[:, 0, 0] = places[:, 1, 1] = scale
    places[:, :, 2] = shift
    blur = torch.from_numpy(rng.uniform(0, 1, (count, 1, 1, 1)).astype(np.float32))
    images = torch.from_numpy(np.ascontiguousarray(pictures))[:, None].float() / 255
    grid = functional.affine_grid(
        torch.from_numpy(places), [count, 1, PIXELS, PIXELS], align_corners=False
    )
    images = functional.grid_sample(images, grid, align_corners=False)
    line = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    soft = functional.conv2d(images, (line[:, None] * line)[None, None], padding=2)
    return images + blur * (soft - images)


def batches(glyphs: Glyphs, part: Part) -> Iterator[Tensor]:
    """The items of a part, block after block, always the same."""
    rng = np.random.default_rng([1, part.seed])
    for start in range(0, len(part), BLOCK):
        rows = slice(start, start + BLOCK)
        yield moved(glyphs.pictures[part.characters[rows], part.faces[rows]], rng)


def parts_of(glyphs: Glyphs, renderings: int) -> dict[str, Part]:
    """All parts, with so many renderings of a character in a face where items are searched.

    - train: seen characters, all faces but one; the table of seen characters too.
    - validation: two further renderings of some of them, in faces by lot.
    - new: one more of each of some, which nothing was chosen on.
    - face: some of them in the face that was held out.
    - unseen: the other characters, in all faces.
    """
    rng = np.random.default_rng(2)

    def crossed(characters: NDArray[np.int64], faces: int, seed: int) -> Part:
        both = np.repeat(characters, faces * renderings)
        return Part(both, np.tile(np.arange(faces), len(characters) * renderings), seed)

    def drawn(each: int, seed: int) -> Part:
        chosen = np.repeat(np.sort(rng.permutation(glyphs.seen)[: ASKED // each]), each)
        return Part(chosen, rng.integers(0, HELD_OUT, len(chosen)), seed)

    held, new, face = drawn(2, 1), drawn(1, 2), drawn(1, 3)
    return {
        "train": crossed(glyphs.seen, HELD_OUT, 0),
        "validation": held,
        "new": new,
        "face": Part(face.characters, np.full(len(face), HELD_OUT), 3),
        "unseen": crossed(glyphs.unseen, len(FACES), 4),
    }
