"""Together with the rest of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.estimator.clouds import clouds, quick


def test_clone_and_parameters() -> None:
    rows, labels = clouds()
    hasher = quick(active=2, hidden=(3,)).fit(rows, labels)
    copy = clone(hasher)
    assert copy.get_params() == hasher.get_params()
    assert not hasattr(copy, "table_")
    assert copy.set_params(active=3).active == 3
    assert "active=2" in repr(hasher)
    assert "FlowHasher" in hasher._repr_html_()


@pytest.mark.long
def test_grid_search() -> None:
    rows, labels = clouds(spread=1.5)
    search = GridSearchCV(quick(), {"buckets": [4, 8], "active": [1, 2]}, cv=2, n_jobs=2)
    search.fit(rows, labels)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_score_ > 0.4
    assert search.best_estimator_.kneighbors(rows)[1].shape == (120, 5)


def test_codes_feed_a_linear_model() -> None:
    rows, labels = clouds(spread=0.3)
    model = make_pipeline(StandardScaler(), quick(), LogisticRegression())
    assert model.fit(rows[:80], labels[:80]).score(rows[80:], labels[80:]) > 0.9
    assert make_pipeline(StandardScaler(), quick()).fit(rows, labels).transform(rows).shape == (
        120,
        8,
    )


def test_the_graph_feeds_a_classifier_by_neighbours() -> None:
    rows, labels = clouds(spread=1.0)
    # With every bucket open it is the classifier of scikit-learn itself.
    open_wide = quick(active=8, output="distance", n_neighbors=5)
    model = make_pipeline(open_wide, KNeighborsClassifier(5, metric="precomputed"))
    plain = KNeighborsClassifier(5).fit(rows[:80], labels[:80])
    np.testing.assert_array_equal(
        model.fit(rows[:80], labels[:80]).predict(rows[80:]), plain.predict(rows[80:])
    )
    narrow = make_pipeline(
        quick(output="distance", n_neighbors=5), KNeighborsClassifier(5, metric="precomputed")
    )
    assert narrow.fit(rows[:80], labels[:80]).score(rows[80:], labels[80:]) > 0.7


def test_a_precomputed_graph_by_hand() -> None:
    rows, labels = clouds()
    hasher = quick().fit(rows[:80], labels[:80])
    model = KNeighborsClassifier(3, metric="precomputed")
    model.fit(hasher.kneighbors_graph(rows[:80], 6, "distance"), labels[:80])
    found = model.predict(hasher.kneighbors_graph(rows[80:], 3, "distance"))
    ids = hasher.kneighbors(rows[80:], 3, return_distance=False)
    wanted = [np.bincount(labels[row]).argmax() for row in ids]
    np.testing.assert_array_equal(found, wanted)
