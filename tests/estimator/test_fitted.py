"""What is fitted holds together: a refit that fails, a changed table, parameters set later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowhash.errors import InputError
from flowhash.estimator import FlowHasher, flow_hasher as hasher
from tests.estimator.clouds import clouds, quick
from tests.estimator.test_files import same


def fail(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["read_classes", "learn_encoder", "_add_items"])
def test_a_refit_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    pandas = pytest.importorskip("pandas")
    rows, labels = clouds()
    frame = pandas.DataFrame(rows, columns=list("abcdef"))
    fitted, known = (quick().fit(frame, labels) for _ in range(2))
    before = dict(fitted.__dict__)
    monkeypatch.setattr(hasher, step, fail)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(rows[:, :3], labels + 7)
    assert fitted.__dict__ == before
    same(fitted, known, frame)
    assert fitted.score(frame, labels) == known.score(frame, labels)


def test_a_first_fit_that_fails_leaves_it_unfitted() -> None:
    rows, labels = clouds()
    new = quick()
    with pytest.raises(InputError, match="one class only"):
        new.fit(rows, np.zeros_like(labels))
    assert new.__dict__.keys() == quick().__dict__.keys()


def test_a_refit_forgets_names_of_columns() -> None:
    pandas = pytest.importorskip("pandas")
    rows, labels = clouds()
    fitted = quick().fit(pandas.DataFrame(rows, columns=list("abcdef")), labels)
    fitted.fit(rows[:, :3], labels)
    assert not hasattr(fitted, "feature_names_in_")
    assert fitted.n_features_in_ == 3


def remove_one(fitted: FlowHasher) -> None:
    del fitted.table_[3]


def remove_the_last(fitted: FlowHasher) -> None:
    del fitted.table_[119]


def exchange(fitted: FlowHasher) -> None:
    item = fitted.table_[3]
    del fitted.table_[3]
    fitted.table_.add(item.code[None], item.embedding[None], encoder=fitted.encoder_.fingerprint)


@pytest.mark.parametrize("change", [remove_one, remove_the_last, exchange])
def test_a_table_that_was_changed_from_outside_is_refused(
    tmp_path: Path, change: Callable[[FlowHasher], None]
) -> None:
    rows, labels = clouds()
    fitted = quick().fit(rows, labels)
    change(fitted)
    uses: list[Callable[[], Any]] = [
        fitted.kneighbors, fitted.__getstate__, lambda: fitted.save(tmp_path / "saved"),
        lambda: fitted.kneighbors(rows), lambda: fitted.score(rows, labels),
        lambda: fitted.add(rows),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(InputError, match="table_ was changed from outside"):
            use()
    assert not list(tmp_path.iterdir())
    assert fitted.fit(rows, labels).kneighbors(n_neighbors=2)[1].shape == (120, 2)


@pytest.mark.parametrize("kind", [str, object])
def test_labels_of_another_kind_are_refused(kind: Any) -> None:
    rows, labels = clouds()
    text = labels.astype(str).astype(kind)
    for one, other, words in [(labels, text, "text.*fit saw numbers"),
                              (text, labels, "numbers.*fit saw text")]:  # fmt: skip
        fitted = quick().fit(rows, one)
        with pytest.raises(InputError, match=words):
            fitted.score(rows, other)
        with pytest.raises(InputError, match=words):
            fitted.add(rows, other)
        assert fitted.score(rows, one) > 0.5
    assert quick().fit(rows, labels).score(rows, labels.astype(float)) > 0.5
    assert quick().fit(rows, text).score(rows, text.astype(str)) > 0.5


@pytest.mark.parametrize("rank", ["input", "codes"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_rank_and_metric_set_later_wait_for_the_next_fit(
    tmp_path: Path, rank: str, metric: str
) -> None:
    rows, labels = clouds()
    fitted, known = (quick(rank=rank, metric=metric).fit(rows, labels) for _ in range(2))
    others = {"rank": {"input": "codes", "codes": "input"}[rank],
              "metric": {"cosine": "euclidean", "euclidean": "cosine"}[metric]}  # fmt: skip
    fitted.set_params(**others)
    same(fitted, known, rows)
    assert fitted.effective_metric_ == metric
    fitted.save(tmp_path)
    again = FlowHasher.load(tmp_path)
    assert again.get_params()["metric"] == others["metric"]
    same(again, known, rows)
    same(again.fit(rows, labels), quick(**others).fit(rows, labels), rows)


@pytest.mark.parametrize("hidden", [(3.7,), (4, 0), (True,), [[4]], (4.0,), (None,)])
def test_layers_have_whole_sizes(tmp_path: Path, hidden: Any) -> None:
    rows, labels = clouds()
    with pytest.raises(InputError, match=r"hidden .*expected whole numbers from 1"):
        quick(hidden=hidden).fit(rows, labels)
    with pytest.raises(InputError, match=r"hidden .*expected whole numbers from 1"):
        quick().fit(rows, labels).set_params(hidden=hidden).save(tmp_path)


def test_layers_may_come_as_an_array() -> None:
    rows, labels = clouds()
    one, other = (quick(hidden=sizes).fit(rows, labels) for sizes in ((4,), np.array([4])))
    same(one, other, rows)


def test_the_home_folder_may_be_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    rows, labels = clouds()
    fitted = quick().fit(rows, labels)
    fitted.save("~/kept")
    assert (tmp_path / "kept").is_dir()
    same(fitted, FlowHasher.load("~/kept"), rows)


def test_score_warns_of_classes_that_were_not_learned() -> None:
    rows, labels = clouds()
    seen = labels != labels[0]
    hasher = quick().fit(rows[seen], labels[seen])
    with pytest.warns(UserWarning, match="class that fit did not see"):
        hasher.score(rows, labels)
