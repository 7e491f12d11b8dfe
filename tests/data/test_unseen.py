"""Classes kept away from training."""

from __future__ import annotations

import numpy as np
import pytest

from flowhash.data import LabelledItems, Preprocessing, Splits, unseen_classes
from flowhash.data.item_sources import ArrayItems
from flowhash.errors import InputError


def splits(classes: int = 5, test: bool = True) -> Splits:
    """Vectors that hold their own class, so that a mix-up of items and labels shows."""

    def some(each: int, mark: float) -> LabelledItems:
        labels = np.repeat(np.arange(classes), each)
        vectors = np.column_stack([labels, np.full(len(labels), mark)]).astype(np.float32)
        names = tuple(f"class {number}" for number in range(classes))
        return LabelledItems(ArrayItems(vectors), labels, names, "toy")

    train = some(4, 1.0)
    return Splits(train, some(2, 2.0), some(3, 3.0) if test else None, Preprocessing.fit(train))


def own_classes(data: LabelledItems) -> set[str]:
    """What the items say themselves, which must be what their labels say."""
    items = data.take(np.arange(len(data)))
    for item, label in zip(items, data.labels, strict=True):
        assert data.class_names[label] == f"class {int(item[0])}"
    return {f"class {int(item[0])}" for item in items}


@pytest.mark.parametrize("seed", range(5))
def test_no_class_is_on_both_sides(seed: int) -> None:
    kept = unseen_classes(splits(), 0.4, seed)
    assert kept.test is not None
    seen, unseen = own_classes(kept.train), own_classes(kept.test)
    assert own_classes(kept.validation) == seen
    assert not seen & unseen
    assert (len(seen), len(unseen)) == (3, 2)
    assert (len(kept.train), len(kept.validation), len(kept.test)) == (12, 6, 6)
    assert kept.train.take(np.arange(12))[:, 1].tolist() == [1.0] * 12
    assert kept.test.take(np.arange(6))[:, 1].tolist() == [3.0] * 6


def test_chance_decides_by_the_seed() -> None:
    names = [unseen_classes(splits(), 0.4, seed).train.class_names for seed in (0, 0, 1, 2, 3)]
    assert names[0] == names[1]
    assert len(set(names)) > 1


def test_preprocessing_knows_nothing_of_what_is_kept_away() -> None:
    kept = unseen_classes(splits(), 0.4, 0)
    vectors = kept.train.take(np.arange(len(kept.train)))
    np.testing.assert_allclose(kept.preprocessing.mean, vectors.mean(axis=0), rtol=1e-6)


def test_refuses_what_leaves_nothing() -> None:
    with pytest.raises(InputError, match="no test split"):
        unseen_classes(splits(test=False))
    with pytest.raises(InputError, match=r"share is 0\.9 of 5 classes"):
        unseen_classes(splits(), 0.9)
    with pytest.raises(InputError, match="keeps 1 away"):
        unseen_classes(splits(), 0.2)
