"""All methods on one table, k after k: the line-up that every table of results shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from flowhash.encoder import Encoder
from flowhash.evaluate.comparison.comparison import Comparison, Trial
from flowhash.evaluate.comparison.intervals import with_intervals
from flowhash.evaluate.comparison.methods import (
    Classifier,
    Exhaustive,
    ExhaustiveOther,
    InvertedLists,
    KnownCentroids,
    Learned,
    LearnedAlone,
    Method,
    Side,
    Start,
    TopDimensions,
    Unpenalised,
    VectorQuantisation,
    VectorQuantisationOther,
)
from flowhash.evaluate.results import METHODS, Row, method_order
from flowhash.networks import EmbeddingNetwork
from flowhash.quality import LabelledTable

Say = Callable[[str], None]


class EncodedSource(ABC):
    """Where encoded items and queries come from.

    A side has the activations of one hash network at a time, because each k has its own; and
    those of its start, where that is not random, and of the one with λ = 0, if it was trained.
    """

    @abstractmethod
    def database(self, active: int | None) -> Side:
        """What is searched, with the activations of the hash network for k = ``active``."""

    @abstractmethod
    def queries(self, active: int | None) -> Side | None:
        """What is asked; None where it is the database itself."""

    @abstractmethod
    def train(self) -> Side | None:
        """The training set, to fit centroids on; None where it is what is searched."""

    @abstractmethod
    def encoder(self, active: int) -> Encoder:
        """Base and hash network for k = ``active``."""

    @abstractmethod
    def ranker(self) -> EmbeddingNetwork:
        """The network whose outputs rank: the base, or the hash network where there is none."""

    def passes(self) -> int:
        """Forward passes of an embedding: none for vectors as they are, two for mirror images."""
        return passes_of(self.ranker())

    def shared(self, active: int) -> bool:
        """Whether the hash network for k = ``active`` shares the base's backbone."""
        encoder = self.encoder(active)
        return encoder.base is None or encoder.networks.shared

    def ranked(self) -> bool:
        """Whether a base network ranks; where the hash network does, Th would be FlowHash."""
        return True

    def alone(self, active: int) -> bool:
        """Whether its outputs are of length one, so that they can rank as well."""
        encoder = self.encoder(active)
        return encoder.base is not None and encoder.hash.unit

    def other_length(self) -> str | None:
        """What ``Side.other`` is, "raw" or "unit"; None where sides have none."""
        return None

    def scored_apart(self) -> bool:
        """Whether the classifier has a network of its own, beside the base."""
        return False


def passes_of(network: EmbeddingNetwork) -> int:
    """Forward passes that one item takes: none for vectors as they are, more for several views."""
    if network.passes_through:
        return 0
    return int(getattr(network.backbone, "passes", 1))


def run_all(
    table: str,
    source: EncodedSource,
    actives: Sequence[int],
    buckets: int,
    classes: int,
    seed: int = 0,
    say: Say = lambda words: None,
) -> tuple[Comparison, list[Trial]]:
    """Put every method through one table.

    Args:
        table: its name, for the rows.
        source: of items and queries.
        actives: the values of k.
        buckets: d, also the number of centroids.
        classes: how many there are.
        seed: of the training, and of k-means.
        say: is told each row in words.

    Returns:
        The comparison, and the trials in the order of the table.
    """
    plain = Comparison(table, source.database(None), source.queries(None), classes, seed)
    trials: list[Trial] = []

    def run(comparison: Comparison, method: Method, k: int | None) -> Trial:
        method.passes = _passes(method, source, k)
        trial = comparison.run(method)
        say(in_words(trial.row))
        if k not in (None, actives[0]):  # only the first k is pictured: let go of other tables
            trial = replace(trial, index=LabelledTable(1, 1, 1, 1))
        trials.append(trial)
        return trial

    length, train, known = source.other_length(), source.train(), KnownCentroids()
    run(plain, Exhaustive(), None)
    if length is not None:
        run(plain, ExhaustiveOther(length), None)
    for k in actives:
        comparison = plain.of_network(source.database(k), source.queries(k))
        scanned = run(comparison, Learned(k), k).row.scanned
        for method in _rivals(source, comparison, train, k, scanned, buckets, known):
            run(comparison, method, k)
    trials.sort(key=lambda trial: (trial.row.k or 0, method_order(trial.row.method)))
    return plain, with_intervals(trials)


def _rivals(
    source: EncodedSource,
    comparison: Comparison,
    train: Side | None,
    k: int,
    scanned: float,
    buckets: int,
    known: KnownCentroids,
) -> list[Method]:
    """What stands beside FlowHash at one k, where there is what it takes.

    The inverted lists open as much as FlowHash ``scanned``.
    """
    database, length, seed = comparison.database, source.other_length(), comparison.seed
    found: list[Method] = []
    if database.start is not None:
        found.append(Start(k))
    if database.free is not None:
        found.append(Unpenalised(k))
    if source.alone(k):
        found.append(LearnedAlone(k))
    if source.ranked() and k <= database.embeddings.shape[1]:
        found.append(TopDimensions(k))
    if len(database) >= buckets:
        found.append(VectorQuantisation(k, buckets, None, seed, known))
        found.append(InvertedLists(buckets, scanned, comparison.itself, k, seed, known))
        if length is not None:
            found.append(VectorQuantisationOther(k, buckets, length, seed, known))
    if train is not None and len(train) >= buckets:
        found.append(VectorQuantisation(k, buckets, train, seed, known))
    if database.scores is not None and k <= database.scores.shape[1]:
        found.append(Classifier(k))
    return found


def _passes(method: Method, source: EncodedSource, active: int | None) -> int:
    """Forward passes a query: of the base, of the hash network, or of both."""
    base = source.passes()
    if isinstance(method, Classifier):
        return base + source.scored_apart()
    if active is None or not isinstance(method, Learned) or source.shared(active):
        return base
    return 1 if isinstance(method, LearnedAlone) else base + 1


def in_words(row: Row) -> str:
    """A row as one line of progress."""
    k = "" if row.k is None else f" k = {row.k}"
    nmi = "" if row.nmi is None else f", NMI {row.nmi:.2f}"
    return (
        f"  {METHODS[row.method]}{k}: SUF {row.suf:.2f}, Pr@1 {row.pr1:.2f}, Pr@4 {row.pr4:.2f}, "
        f"Pr@16 {row.pr16:.2f}{nmi}"
    )
