"""The paper's own numbers: its Tables 1 to 5 and the points of its Figure 2.

They are copied from the source of "Efficient end-to-end learning for quantizable representations"
(ICML 2018); a test reads them out of that source again. Figure 4 shows numbers of Tables 2 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowhash.errors import InputError
from flowhash.evaluate.results import Row
from flowhash.quality import expected_speed_up

SEED = -1  # of the paper's rows, which no seed of ours can have
NMI_TABLE = 5

# Figure 2: seconds of OR-Tools a mini-batch on an Intel Xeon E5-2650, mean of 20 runs; the keys
# are the numbers of classes and of buckets. The paper does not give k and λ there.
PAPER_SOLVER_SECONDS: dict[tuple[int, int], float] = {
    (64, 64): 0.0235,
    (64, 128): 0.0460,
    (64, 256): 0.1017,
    (64, 512): 0.1962,
    (128, 64): 0.0473,
    (128, 128): 0.0941,
    (128, 256): 0.1903,
    (128, 512): 0.3846,
    (256, 64): 0.0975,
    (256, 128): 0.1939,
    (256, 256): 0.3917,
    (256, 512): 0.7822,
    (512, 64): 0.2026,
    (512, 128): 0.4026,
    (512, 256): 0.7958,
    (512, 512): 1.6129,
}


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper.

    Attributes:
        data: "cifar100" or "imagenet32".
        loss: "triplet" or "npairs".
        number: of the paper's table that has it.
        buckets: d.
        active: the values of k.
        items: in each table that is searched. For ImageNet the paper searches its *val* set, which
            is called "test" here: it has the part that CIFAR-100's test set has.
        queries: how many are asked.
    """

    data: str
    loss: str
    number: int
    buckets: int
    active: tuple[int, ...]
    items: dict[str, int]
    queries: int

    @property
    def title(self) -> str:
        """What stands before a table's caption."""
        name = {"cifar100": "CIFAR-100", "imagenet32": "ImageNet32"}[self.data]
        return f"{name}, {self.loss}, d = {self.buckets}"

    @property
    def table_names(self) -> dict[str, str]:
        """What the paper calls each searched table."""
        return {table: "val" if self.data == "imagenet32" else table for table in self.items}


_CIFAR_ITEMS = {"train": 50_000, "test": 10_000}  # the paper's text: 500 and 100 images a class
_IMAGENET_ITEMS = {"test": 50_000}

EXPERIMENTS: dict[tuple[str, str], Experiment] = {
    (experiment.data, experiment.loss): experiment
    for experiment in (
        Experiment("cifar100", "triplet", 1, 256, (1, 2, 3, 4), _CIFAR_ITEMS, 10_000),
        Experiment("cifar100", "npairs", 2, 64, (1, 2, 3, 4), _CIFAR_ITEMS, 10_000),
        Experiment("imagenet32", "npairs", 3, 512, (1, 2, 3), _IMAGENET_ITEMS, 50_000),
        Experiment("imagenet32", "triplet", 4, 256, (1, 2, 3), _IMAGENET_ITEMS, 50_000),
    )
}

# SUF, Pr@1, Pr@4 and Pr@16 of a line; for CIFAR-100 first of train's table, then of test's.
_LINES: dict[int, dict[tuple[str, int | None], tuple[float, ...]]] = {
    1: {
        ("exhaustive", None): (1.00, 62.64, 61.91, 61.22, 1.00, 56.78, 55.99, 53.95),
        ("th", 1): (43.19, 61.56, 60.24, 58.23, 41.21, 54.82, 52.88, 48.03),
        ("vq", 1): (40.35, 62.54, 61.78, 60.98, 22.78, 56.74, 55.94, 53.77),
        ("flowhash", 1): (97.77, 63.85, 63.40, 63.39, 97.67, 57.63, 57.16, 55.76),
        ("th", 2): (15.34, 62.41, 61.68, 60.89, 14.82, 56.55, 55.62, 52.90),
        ("vq", 2): (6.94, 62.66, 61.92, 61.26, 5.63, 56.78, 56.00, 53.99),
        ("flowhash", 2): (78.28, 63.60, 63.19, 63.09, 76.12, 57.30, 56.70, 55.19),
        ("th", 3): (8.04, 62.66, 61.88, 61.16, 7.84, 56.78, 55.91, 53.64),
        ("vq", 3): (2.96, 62.62, 61.92, 61.22, 2.83, 56.78, 55.99, 53.95),
        ("flowhash", 3): (44.36, 62.87, 62.22, 61.84, 42.12, 56.97, 56.25, 54.40),
        ("th", 4): (5.00, 62.66, 61.94, 61.24, 4.90, 56.84, 56.01, 53.86),
        ("vq", 4): (1.97, 62.62, 61.91, 61.22, 1.91, 56.77, 55.99, 53.94),
        ("flowhash", 4): (16.52, 62.81, 62.14, 61.58, 16.19, 57.11, 56.21, 54.20),
    },
    2: {
        ("exhaustive", None): (1.00, 61.78, 60.63, 59.73, 1.00, 57.05, 55.70, 53.91),
        ("th", 1): (13.65, 60.80, 59.49, 57.27, 12.72, 54.95, 52.60, 47.16),
        ("vq", 1): (31.35, 61.22, 60.24, 59.34, 34.86, 56.76, 55.35, 53.75),
        ("flowhash", 1): (54.90, 63.11, 62.29, 61.94, 54.85, 58.19, 57.22, 55.87),
        ("th", 2): (5.36, 61.65, 60.50, 59.50, 5.09, 56.52, 55.28, 53.04),
        ("vq", 2): (5.44, 61.82, 60.56, 59.70, 6.08, 57.13, 55.74, 53.90),
        ("flowhash", 2): (16.51, 61.98, 60.93, 60.15, 16.20, 57.27, 55.98, 54.42),
        ("th", 3): (3.21, 61.75, 60.66, 59.73, 3.10, 56.97, 55.56, 53.76),
        ("vq", 3): (2.36, 61.78, 60.62, 59.73, 2.66, 57.01, 55.69, 53.90),
        ("flowhash", 3): (7.32, 61.90, 60.80, 59.96, 7.25, 57.15, 55.81, 54.10),
        ("th", 4): (2.30, 61.78, 60.66, 59.75, 2.25, 57.02, 55.64, 53.88),
        ("vq", 4): (1.55, 61.78, 60.62, 59.73, 1.66, 57.03, 55.70, 53.91),
        ("flowhash", 4): (4.52, 61.81, 60.69, 59.77, 4.51, 57.15, 55.77, 54.01),
    },
    3: {
        ("exhaustive", None): (1.00, 15.73, 13.75, 11.08),
        ("th", 1): (1.74, 15.06, 12.92, 9.92),
        ("vq", 1): (451.42, 15.20, 13.27, 10.96),
        ("flowhash", 1): (478.46, 16.95, 15.27, 13.06),
        ("th", 2): (1.18, 15.70, 13.69, 10.96),
        ("vq", 2): (116.26, 15.62, 13.68, 11.15),
        ("flowhash", 2): (116.61, 16.40, 14.49, 12.00),
        ("th", 3): (1.07, 15.73, 13.74, 11.07),
        ("vq", 3): (55.80, 15.74, 13.74, 11.12),
        ("flowhash", 3): (53.98, 16.24, 14.32, 11.73),
    },
    4: {
        ("exhaustive", None): (1.00, 10.90, 9.39, 7.45),
        ("th", 1): (18.81, 10.20, 8.58, 6.50),
        ("vq", 1): (146.26, 10.37, 8.84, 6.90),
        ("flowhash", 1): (221.49, 11.00, 9.59, 7.83),
        ("th", 2): (6.33, 10.82, 9.30, 7.32),
        ("vq", 2): (32.83, 10.88, 9.33, 7.39),
        ("flowhash", 2): (60.25, 11.10, 9.64, 7.73),
        ("th", 3): (3.64, 10.87, 9.38, 7.42),
        ("vq", 3): (13.85, 10.90, 9.38, 7.44),
        ("flowhash", 3): (27.16, 11.20, 9.55, 7.60),
    },
}

# Table 5, at k = 1: by loss and method, CIFAR-100 train and test, then ImageNet val.
_NMI: dict[tuple[str, str], tuple[float, float, float]] = {
    ("triplet", "th"): (68.20, 54.95, 31.62),
    ("triplet", "vq"): (76.85, 62.68, 45.47),
    ("triplet", "flowhash"): (89.11, 68.95, 48.52),
    ("npairs", "th"): (51.46, 44.32, 15.20),
    ("npairs", "vq"): (80.25, 66.69, 53.74),
    ("npairs", "flowhash"): (84.90, 68.56, 55.09),
}
_NMI_COLUMNS = {("cifar100", "train"): 0, ("cifar100", "test"): 1, ("imagenet32", "test"): 2}


def paper_experiment(data: str, loss: str) -> Experiment:
    """The paper's experiment on ``data`` with ``loss``.

    Raises:
        InputError: the paper has none.
    """
    if (data, loss) not in EXPERIMENTS:
        known = ", ".join(f"{name} with {other}" for name, other in EXPERIMENTS)
        raise InputError(f"the paper has no {data!r} with {loss!r}; it has {known}")
    return EXPERIMENTS[data, loss]


def paper_rows(data: str, loss: str) -> list[Row]:
    """What the paper reports for ``data`` and ``loss``, as rows like the measured ones.

    The table is "train" or "test"; for ImageNet the paper searches its *val* set, here "test".
    The paper prints SUF, Pr@K and NMI. Items scanned are items / SUF, the expected SUF is Eq. 9;
    it has no wall-clock time of a search, so ``seconds`` is 0.

    Args:
        data: "cifar100" or "imagenet32".
        loss: "triplet" or "npairs".

    Raises:
        InputError: the paper has no such experiment.
    """
    experiment = paper_experiment(data, loss)
    return [
        _row(experiment, table, method, active, numbers[4 * place : 4 * place + 4])
        for place, table in enumerate(experiment.items)
        for (method, active), numbers in _LINES[experiment.number].items()
    ]


def _row(
    experiment: Experiment, table: str, method: str, active: int | None, numbers: tuple[float, ...]
) -> Row:
    suf, pr1, pr4, pr16 = numbers
    nmi = None
    if active == 1:
        nmi = _NMI[experiment.loss, method][_NMI_COLUMNS[experiment.data, table]]
    return Row(
        method=method,
        table=table,
        k=active,
        seed=SEED,
        suf=suf,
        pr1=pr1,
        pr4=pr4,
        pr16=pr16,
        nmi=nmi,
        scanned=experiment.items[table] / suf,
        seconds=0.0,
        passes=2 if method == "flowhash" else 1,
        buckets=1 if active is None else experiment.buckets,
        items=experiment.items[table],
        queries=experiment.queries,
        expected=None if active is None else expected_speed_up(experiment.buckets, active),
    )
