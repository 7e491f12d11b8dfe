"""``flowhash fit``: from data, labelled or not, to an encoder in a folder."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowhash.cli import options
from flowhash.cli.config_file import save_settings
from flowhash.cli.locations import located, opened, writable
from flowhash.cli.output import Output, Stopped, described
from flowhash.errors import InputError
from flowhash.extras import require

if TYPE_CHECKING:
    from flowhash.data import Splits
    from flowhash.learn import Processes

VECTOR_FILES = (".npy", ".npz", ".parquet")
CHOICE = "choice.json"  # what was tried before a run, in its folder

command = typer.Typer(add_completion=False)


@command.command(epilog="Example:  flowhash fit digits --buckets 32 --active 2")
def fit(
    context: typer.Context,
    data: options.Data,
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder, DATA.run if not given; an interrupted run goes on."),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(min=1, help="d, how many buckets; chosen for vectors, if not given."),
    ] = None,
    active: Annotated[int | None, typer.Option(min=1, help="k, buckets of each item.")] = None,
    first_active: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="k at the first step of learning buckets; it falls to --active over 70 % of them.",
        ),
    ] = None,
    penalty: Annotated[float | None, typer.Option(help="λ, what sharing a bucket costs.")] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="What gets a code of its own: classes, or auto for parts of them where there are "
            "more buckets than classes."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            autocompletion=options.complete_preset,
            help="Settings by name: cpu-cifar100-LOSS, paper-cifar100-LOSS or "
            "paper-imagenet32-LOSS, with npairs or triplet, or cpu-digits. Without it they suit "
            "the data.",
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            help="base; whitened, the same with an even spread within classes, also for classes "
            "that come later; or hash, the hash network's outputs."
        ),
    ] = None,
    class_order: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Weight of the class in the order of buckets; 0 suits classes that come later.",
        ),
    ] = None,
    new_classes: Annotated[
        bool,
        typer.Option(
            "--new-classes",
            help="Choose settings for classes that will come later, on classes that are held out; "
            "for vectors.",
        ),
    ] = False,
    flip: Annotated[
        bool, typer.Option(help="Mirror images at random; not for letters or left and right.")
    ] = True,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of each stage, instead of what suits the data.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Of the training; splits have their own.")
    ] = 0,
    opening: options.Opening,
    size: options.Size = None,
    download: options.Download = False,
    device: options.Device = "auto",
    output: Output,
) -> None:
    """Learn an encoder from labelled data: a base embedding, then its buckets (Algorithm 1).

    From a file of vectors without labels it learns in which buckets neighbours lie, so that
    searches can be asked for a recall.

    Ctrl-C stops it between two steps; the same command goes on where it stopped. On several GPUs or
    processes: torchrun --nproc-per-node N -m flowhash.cli fit ….
    """
    require("torch", "learn")
    from flowhash.learn import join_processes, train

    run = Path(f"{Path(data).expanduser().resolve().stem}.run") if out is None else out
    processes = join_processes(device)
    if run.exists():
        writable(run)
    vectors = _without_labels(data, opening, preset, output.progress)
    if vectors is not None:
        labelled = {
            "active": active, "first-active": first_active, "penalty": penalty, "groups": groups,
            "rank": rank, "class-order": class_order, "steps": steps,
            "new-classes": new_classes or None,
        }  # fmt: skip
        _refuse_options(data, {name for name, value in labelled.items() if value is not None})
        if processes.first:
            _fit_router(context, data, vectors, run, buckets, seed, output)
        processes.wait()
        return
    with processes.in_turn():  # one downloads and converts, the others find it done
        splits = opened(data, opening.given(size=size, download=download), output.progress)
    chosen = {
        "active": active, "first_active": first_active, "penalty": penalty, "groups": groups,
        "rank": rank, "class_order": class_order, "seed": seed,
    }  # fmt: skip
    given = {name: value for name, value in chosen.items() if value is not None}
    if preset is None and splits.preprocessing.kind == "vectors":
        settings = _vector_settings(
            splits, run, buckets, steps, given, new_classes, processes, output
        )
    elif new_classes:
        held = "--preset" if preset is not None else f"{splits.train.source}, which holds images"
        raise InputError(
            f"--new-classes chooses settings of vectors, but came with {held}; leave it out, or "
            "give embeddings in an array file and no preset"
        )
    else:
        settings = replace(_settings(splits, preset, buckets, active, steps, flip), **given)
    if settings.base is not None or settings.hash.loss != "codes":
        _refuse_single_items(splits)
    if processes.first:
        for line in described(splits, settings):
            output.say(line)
    finished = (run / "encoder" / "encoder.json").exists()
    try:
        encoder = train(splits, settings, run, device=device, quiet=output.quiet)
    except InputError as error:
        if preset is None:
            raise
        advice = f"The preset is {preset}; without one the settings suit the data"
        raise InputError(f"{error}. {advice}") from error
    except KeyboardInterrupt as error:
        if processes.first:
            _save(context, run, data, settings)
        raise Stopped(f"the same command goes on from {run}") from error
    if processes.first:
        _save(context, run, data, settings)
        _answer(output, run, encoder, finished)


def _without_labels(data: str, opening: options.Opening, preset: str | None, progress: bool) -> Any:
    """The vectors of a file that has no labels; None for everything else, which is labelled."""
    given = opening.given()
    asked = preset is not None or "labels" in given or "label" in given
    if asked or Path(data).suffix not in VECTOR_FILES or not Path(data).expanduser().exists():
        return None
    from flowhash.data import open_collection

    found = open_collection(data, progress=progress, **given)
    labelled = any(label is not None for label in found.labels)
    return None if labelled or found.items.kind != "vectors" else found.items


def _refuse_options(data: str, given: set[str]) -> None:
    """Refuse what is about labels, where there are none."""
    if given:
        names = ", ".join(f"--{name}" for name in sorted(given))
        raise InputError(
            f"{data} has no labels, which {names} takes; leave that out, or say where the labels "
            "are, with --labels or --label"
        )


def _fit_router(
    context: typer.Context, data: str, items: Any, run: Path, buckets: int | None, seed: int,
    output: Output,
) -> None:  # fmt: skip
    """Learn buckets from vectors alone; a finished run is left as it is."""
    import numpy as np

    from flowhash.data import LabelledItems, Preprocessing
    from flowhash.encoder import Encoder
    from flowhash.learn import fit_vectors, router_encoder
    from flowhash.model_files import read_json, write_json

    rows = items.take(np.arange(len(items)))
    digest = hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()[:16]
    wanted = {"data": str(located(data)), "items": len(items), "digest": digest, "seed": seed}
    finished = (run / "encoder" / "encoder.json").exists()
    if finished:
        noted = read_json(run / CHOICE) if (run / CHOICE).exists() else {}
        same = {name: noted.get(name) for name in wanted} == wanted
        # The settings of a run name the number that it chose.
        if not same or buckets not in (noted.get("asked"), noted.get("buckets")):
            raise InputError(
                f"{run} holds an encoder of other data or settings; give another folder with --out"
            )
        encoder, trials = Encoder.load(run / "encoder"), noted["trials"]
    else:
        nobody = LabelledItems(items, np.zeros(len(items), np.int64), ("",), data)
        preprocessing = Preprocessing.fit(nobody, progress=output.progress)
        vectors = preprocessing(rows)
        router, made = fit_vectors(
            vectors, buckets, seed=seed, show=output.progress, say=output.say
        )
        encoder = router_encoder(router, preprocessing)
        trials = [trial.to_json() for trial in made.trials]
        run.mkdir(parents=True, exist_ok=True)
        note = {
            **wanted, "asked": buckets, "buckets": encoder.buckets, "hidden": [], "trials": trials,
        }  # fmt: skip
        write_json(run / CHOICE, note)
        encoder.save(run / "encoder")
    save_settings(
        context, run / "fit.toml", data=located(data), out=run, buckets=encoder.buckets, seed=seed
    )
    facts = {
        "run": run, "encoder": run / "encoder", "fingerprint": encoder.fingerprint,
        "buckets": encoder.buckets, "active": encoder.active, "dim": encoder.dim, "classes": 0,
        "trials": trials, "settings": run / "fit.toml",
    }  # fmt: skip
    folder = shlex.quote(str(run))
    output.result(
        facts,
        f"{'was finished before' if finished else 'finished'}, without labels",
        f"encoder: {run / 'encoder'}  ({encoder})",
        f"next: flowhash index {folder} ITEMS --out TABLE, then flowhash adapt TABLE, which gives "
        "second buckets and calibrates, then flowhash search TABLE QUERIES --recall 0.95",
    )


def _refuse_single_items(splits: Splits) -> None:
    """A class of one item has no pair to learn from; say which, by their names."""
    import numpy as np

    sizes = np.bincount(splits.train.labels, minlength=splits.train.classes)
    single = [splits.train.class_names[label] for label in np.flatnonzero(sizes == 1)]
    if single:
        shown = ", ".join(single[:5]) + (" …" if len(single) > 5 else "")
        raise InputError(
            f"{splits.train.source} has classes with a single item to learn from: {shown} "
            f"({len(single)} in all); training takes two or more of each. Add items to them, or "
            "leave them out"
        )


def _settings(
    splits: Splits, name: str | None, buckets: int | None, active: int | None, steps: int | None,
    flip: bool,
) -> Any:  # fmt: skip
    """The settings of a preset, or those that suit the data, with what was chosen instead."""
    from flowhash.learn import preset, suggest

    if name is None:
        settings = suggest(splits, buckets, active or 1)
    else:
        settings = preset(name)
        if buckets is not None:
            settings = replace(settings, hash=replace(settings.hash, outputs=buckets))
    changes: dict[str, Any] = {}
    if steps is not None:
        stages = {"base": settings.base, "hash": settings.hash}
        changes = {key: replace(one, steps=steps) for key, one in stages.items() if one is not None}
    if settings.augment is not None and not flip:
        changes["augment"] = {**settings.augment, "flip": False}
    return replace(settings, **changes)


def _vector_settings(
    splits: Splits, run: Path, buckets: int | None, steps: int | None, given: dict[str, Any],
    new_classes: bool, processes: Processes, output: Output,
) -> Any:  # fmt: skip
    """Settings whose layers and buckets the validation split chooses; a run's stay as they are.

    For new classes some that are held out choose, and what ranks too.
    """
    from flowhash.learn import (
        choose_for_new_classes,
        choose_settings,
        for_new_classes,
        vector_settings,
    )
    from flowhash.model_files import read_json, write_json

    def make(count: int, hidden: tuple[int, ...]) -> Any:
        least = max(given.get(name, 1) for name in ("active", "first_active"))
        count = count if buckets else max(count, least)
        named = {"groups", "active", "penalty", "seed"} & given.keys()
        made = vector_settings(
            splits.train.labels, count, hidden, steps=steps, **{name: given[name] for name in named}
        )
        return replace(made, **given)

    def again(kept: dict[str, Any]) -> Any:
        made = make(kept["buckets"], tuple(kept["hidden"]))
        return for_new_classes(made, **kept["new_classes"]) if new_classes else made

    note = run / CHOICE
    before = read_json(note) if note.exists() else None
    processes.wait()  # all have looked before the first one writes
    if before is not None and _same_question(before, buckets, given.get("rank"), new_classes):
        return again(before)
    say, device = output.say if processes.first else _nobody, str(processes.device)
    if new_classes:
        say("a few settings are tried on classes that are held out:")
        ranks = (given["rank"],) if "rank" in given else ("base", "whitened")
        settings, trials = choose_for_new_classes(
            splits, make, buckets, ranks=ranks, seed=given["seed"], device=device, say=say
        )
    else:
        say("a few settings are tried on the validation split:")
        settings, trials = choose_settings(splits, make, buckets, device=device, say=say)
    if processes.first:
        chosen = {
            name: trials[-1].to_json()[name] for name in ("rank", "neighbours") if new_classes
        }
        write_json(note, {
            "buckets": settings.hash.outputs, "hidden": settings.backbone.get("hidden", []),
            **({"new_classes": chosen} if new_classes else {}),
            "trials": [trial.to_json() for trial in trials],
        })  # fmt: skip
    processes.wait()
    return again(read_json(note))  # of the first, whose figures may differ in a last digit


def _same_question(
    before: dict[str, Any], buckets: int | None, rank: str | None, new_classes: bool
) -> bool:
    """Whether what a run chose before is an answer to what is asked now."""
    found = before.get("new_classes")
    if new_classes != (found is not None) or buckets not in (None, before["buckets"]):
        return False
    return found is None or rank in (None, found["rank"])


def _nobody(line: str) -> None:
    """Hears a line, and says nothing."""


def _save(context: typer.Context, run: Path, data: str, settings: Any) -> None:
    """What the run was made with; never what was refused, which another run's folder keeps."""
    names = ("active", "penalty", "groups", "rank", "class_order")
    chosen = {name: getattr(settings, name) for name in names}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    buckets = settings.hash.outputs
    save_settings(context, run / "fit.toml", data=located(data), out=run, buckets=buckets, **chosen)


def _answer(output: Output, run: Path, encoder: Any, finished: bool) -> None:
    from flowhash.learn import best_validation

    best = best_validation(run / "hash")
    facts = {
        "run": run, "encoder": run / "encoder", "fingerprint": encoder.fingerprint,
        "buckets": encoder.buckets, "active": encoder.active, "dim": encoder.dim,
        "classes": len(encoder.class_names), "validation": best, "settings": run / "fit.toml",
    }  # fmt: skip
    result = "there was nothing to validate on"
    if best is not None:
        result = (
            f"validation Pr@1 {100 * best['pr1']:.2f} %, SUF {best['suf']:.1f} at step "
            f"{best['step']} of the hash stage"
        )
    output.result(
        facts,
        f"{'was finished before' if finished else 'finished'}: {result}",
        f"encoder: {run / 'encoder'}  ({encoder})",
        f"next: flowhash index {shlex.quote(str(run))} ITEMS --out TABLE",
    )
