"""The loop of one stage: codes, steps, rates, validations, checkpoints, signals and troubles."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flowhash.codes import assign_codes, class_means, item_objective, upper_bound_gap
from flowhash.errors import InputError, TrainingError
from flowhash.learn.batches import Batches, TrainingBatch
from flowhash.learn.losses import CodeLoss, MetricLoss
from flowhash.learn.settings import Settings, Stage
from flowhash.learn.training.checkpoints import Checkpoint, Checkpoints, restore, state_tensors
from flowhash.learn.training.process_group import Processes
from flowhash.learn.training.training_journal import Journal, Progress
from flowhash.learn.training.validation import Best, in_words
from flowhash.networks import EmbeddingNetwork

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REVIVALS = 20  # in as many steps as a stage has, of which the last are left out
ASIDE = 0.1  # of the root mean square of an output's weights: how far from it a copy starts


@dataclass
class Coder:
    """Codes of a batch by minimum-cost flow, each batch started from the last one's prices.

    Attributes:
        active: k of the next batch's codes; it may change from one to the next.
        penalty: λ of the class problem.
        owners: the class of every group [groups], for ``shares``. With them what a batch's groups
            share with others, which keep the codes of their last batch, costs as much as what they
            share among themselves. None leaves each batch to itself, as the paper has it.
        prices: the buckets' prices after the last batch, or None; part of a checkpoint.
        chosen: the code of every group in its last batch [groups, largest k so far], or None; part
            of a checkpoint. It is -1 before a group's first batch, and where its code had fewer.
        loads: how many classes chose each bucket since the last report, or None.
        seconds: spent here since the last report.
        objective: ĝ of the last batch, with what it shares with other batches' groups.
    """

    active: int
    penalty: float
    owners: NDArray[np.int64] | None = None
    prices: NDArray[np.float64] | None = None
    chosen: NDArray[np.int32] | None = None
    loads: NDArray[np.int64] | None = None
    seconds: float = 0.0
    objective: float = 0.0

    def codes(
        self, embeddings: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The code of each item [B, k]: that of its class, optimal for the batch (lines 3 and 4).

        Args:
            embeddings: f(x) of the global batch [B, d].
            labels: [B].
        """
        start = time.perf_counter()
        means, classes = class_means(embeddings, labels)
        outside = self._outside(classes, embeddings.shape[1])
        found = assign_codes(means, self.active, self.penalty, outside=outside, prices=self.prices)
        self.prices, self.objective = found.prices, found.objective
        if self.chosen is not None:
            self.chosen[classes] = -1
            self.chosen[classes, : self.active] = found.codes
        counted = np.bincount(found.codes.ravel(), minlength=embeddings.shape[1])
        self.loads = counted if self.loads is None else self.loads + counted
        codes = found.codes[np.searchsorted(classes, labels)].astype(np.int64)
        self.seconds += time.perf_counter() - start
        return codes

    def _outside(self, classes: NDArray[np.int64], buckets: int) -> NDArray[np.int64] | None:
        """How many groups that are not in the batch are in each bucket."""
        if self.owners is None:
            return None
        if self.chosen is None:
            self.chosen = np.full((len(self.owners), self.active), -1, np.int32)
        more = self.active - self.chosen.shape[1]  # than any batch had before
        if more > 0:
            self.chosen = np.pad(self.chosen, ((0, 0), (0, more)), constant_values=-1)
        others = np.delete(self.chosen, classes, axis=0)
        return np.bincount(others[others >= 0], minlength=buckets)

    def held(self, buckets: int) -> NDArray[np.int64] | None:
        """How many groups are in each bucket [d]; None while one of them has no code yet."""
        if self.chosen is None or bool((self.chosen < 0).all(axis=1).any()):
            return None
        return np.bincount(self.chosen[self.chosen >= 0], minlength=buckets)

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        kept = {"prices": self.prices, "chosen": self.chosen, "loads": self.loads}
        return {name: None if array is None else array.tolist() for name, array in kept.items()}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's record, or one of an older FlowHash, which knew less."""
        kinds = {"prices": np.float64, "chosen": np.int32, "loads": np.int64}
        for name, kind in kinds.items():
            kept = record.get(name)
            setattr(self, name, None if kept is None else np.array(kept, kind))
        groups = None if self.owners is None else len(self.owners)
        if self.chosen is not None and groups is not None and len(self.chosen) != groups:
            raise InputError(
                f"the checkpoint has codes of {len(self.chosen)} groups, but there are {groups}; "
                "train with the same groups, or in another folder"
            )

    def shares(self, classes: NDArray[np.int64], buckets: int) -> NDArray[np.float32]:
        """How much of each bucket is each of some classes', of the groups in it [classes, d].

        Args:
            classes: ascending, each once.
            buckets: d.
        """
        assert self.owners is not None
        assert self.chosen is not None
        loads = np.bincount(self.chosen[self.chosen >= 0], minlength=buckets)
        groups = np.flatnonzero(np.isin(self.owners, classes))
        rows = np.searchsorted(classes, self.owners[groups])
        found = np.zeros((len(classes), buckets), np.float32)
        for codes in self.chosen[groups].T:
            known = codes >= 0
            np.add.at(found, (rows[known], codes[known]), 1)
        return np.asarray(found / np.maximum(loads, 1), np.float32)

    def class_buckets(
        self, classes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The buckets of some classes' groups, and what of each is the group's [classes, most].

        It is ``shares`` without the zeros, of which there are thousands for each number where there
        are thousands of buckets. A bucket that several groups of a class have comes once for each;
        rows that are shorter than the longest end with shares of zero.

        Args:
            classes: ascending, each once.
        """
        assert self.owners is not None
        assert self.chosen is not None
        known = self.chosen[self.chosen >= 0]
        loads = np.maximum(np.bincount(known, minlength=1), 1)
        groups = np.flatnonzero(np.isin(self.owners, classes))
        rows = np.searchsorted(classes, self.owners[groups])
        order = np.argsort(rows, kind="stable")
        groups, rows = groups[order], rows[order]
        places = np.arange(len(rows)) - np.searchsorted(rows, rows)  # of a group in its class
        shape = (len(classes), int(places.max()) + 1, self.chosen.shape[1])
        buckets, shares = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        codes = self.chosen[groups]
        buckets[rows, places] = np.maximum(codes, 0)
        shares[rows, places] = np.where(codes >= 0, 1 / loads[np.maximum(codes, 0)], 0)
        return buckets.reshape(len(classes), -1), shares.reshape(len(classes), -1)

    def report(
        self,
        codes: NDArray[np.int64],
        embeddings: NDArray[np.float32],
        labels: NDArray[np.int64],
    ) -> dict[str, float]:
        """ĝ, g and M(θ) of the last batch, and how evenly buckets are chosen.

        That is by all groups, where their codes are known, else by those of the batches since the
        last call.

        g is of the items with the penalty that makes m·ĝ + M its upper bound: λ / m.
        """
        items = len(labels) / len(np.unique(labels))
        values = {
            "class_objective": self.objective,
            "item_objective": item_objective(codes, embeddings, labels, self.penalty / items),
            "bound_gap": upper_bound_gap(embeddings, labels, self.active),
        }
        loads = self.loads
        if self.chosen is not None:  # of all groups, as they are now
            known = self.chosen[self.chosen >= 0]
            loads = np.bincount(known, minlength=embeddings.shape[1])
        if loads is not None:
            share = loads / max(1, loads.sum())
            positive = share[share > 0]
            values["buckets_used"] = float((loads > 0).mean())
            values["buckets_effective"] = float(np.exp(-(positive * np.log(positive)).sum()))
            values["largest_load"] = float(share.max())
            values["load_variation"] = float(share.std() / share.mean())
        self.loads, self.seconds = None, 0.0
        return values


@dataclass
class StageRun:
    """One stage, ready to run.

    Attributes:
        name: "base" or "hash".
        stage: its settings.
        settings: of the whole run.
        folder: of the whole run; without one there is no journal.
        processes: those that train it together.
        quiet: no progress on the terminal.
        network: what is trained; it is on the processes' device.
        loss: what is minimised.
        batches: what it is trained on.
        checkpoints: where its states are kept.
        coder: solves for codes in the hash stage, None in the base stage.
        validate: measures the network on the validation split, or None.
        before: bytes of ``metrics.jsonl`` that the stage before wrote.
        ranker: what items will be ranked by, for losses that look at neighbours; None where that
            is the network itself.
    """

    name: str
    stage: Stage
    settings: Settings
    folder: Path | None
    processes: Processes
    quiet: bool
    network: EmbeddingNetwork
    loss: MetricLoss
    batches: Batches
    checkpoints: Checkpoints
    coder: Coder | None = None
    validate: Callable[[EmbeddingNetwork], dict[str, Any]] | None = None
    before: int = 0
    ranker: EmbeddingNetwork | None = None


def train_stage(run: StageRun) -> dict[str, Any]:
    """Train one stage to its end, from its last checkpoint if there is one.

    The network ends with the weights of the best validation. Returns the last checkpoint's record.

    Raises:
        TrainingError: the loss is not finite, memory or another process is gone. The message names
            the last good checkpoint, from which the same call goes on.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the state was saved first, the same call goes on.
    """
    loop = _Loop(run)
    if loop.step < run.stage.steps:
        with explained(run.checkpoints, run.processes, run.stage.batch):
            loop.train()
    run.processes.wait()
    last = run.checkpoints.load("last")
    assert last is not None
    best = run.checkpoints.load("best") or last
    run.network.load_state_dict(best.part("network"))
    if run.coder is not None:
        run.coder.restore(best.record)
    return last.record


class _Loop:
    """One stage while it runs: where it is, and its moving parts."""

    def __init__(self, run: StageRun) -> None:
        self.run = run
        self.optimiser = make_optimiser(run.network, run.loss, run.stage)
        self.step, self.seconds, self.best = 0, 0.0, Best()
        self.journal: Journal | None = None
        self.journal_start = run.before
        self.facts = ""  # of the last line of the journal, beside the bar
        last = run.checkpoints.load("last")
        if last is not None:
            self._resume(last)

    def _resume(self, last: Checkpoint) -> None:
        record, coder = last.record, self.run.coder
        try:
            restore(last, self.run.network, self.run.loss, self.optimiser)
        except (RuntimeError, IndexError) as error:
            raise InputError(
                f"the checkpoint of step {record['step']} does not fit the network: {error}; train "
                "with the same network, or in another folder"
            ) from error
        if coder is not None:
            coder.restore(record)
        self.step, self.seconds = record["step"], record["seconds"]
        self.journal_start, self.best = record["journal"], Best(**record["best"])

    def train(self) -> None:
        """All steps that are left."""
        run, every = self.run, self.run.settings
        network = run.processes.wrap(run.network).train()
        if run.stage.backbone_rate == 0:  # frozen: statistics of normalisation stay as they are too
            run.network.backbone.eval()
        self.progress = Progress(
            f"{run.name} ({run.stage.loss})", run.stage.steps, self.step,
            run.quiet or not run.processes.first,
        )  # fmt: skip
        self.since, self.logged = time.perf_counter(), self.step
        began = self.since - self.seconds
        with self._opened_journal(), Interruption() as interruption, self.progress as progress:
            for batch in run.batches.between(self.step, run.stage.steps):
                rate = set_rate(self.optimiser, run.stage, batch.step)
                loss, embeddings, codes = self._step(network, batch)
                self.step = batch.step + 1
                self.seconds = time.perf_counter() - began
                last = self.step == run.stage.steps
                if self.step % every.log_every == 0 or last:
                    self._log(loss, rate, batch, embeddings, codes)
                if run.validate is not None and (self.step % every.validate_every == 0 or last):
                    self._validate(run.validate)
                    self.seconds = time.perf_counter() - began
                self._revive()  # what is new is not validated before it has learned anything
                stop = run.processes.any(interruption.asked)
                if self.step % every.checkpoint_every == 0 or last or stop:
                    self._save("last")
                progress.step(self.step, f"loss {loss:.4f}  rate {rate:.1e}{self.facts}")
                if stop:
                    raise KeyboardInterrupt

    @contextlib.contextmanager
    def _opened_journal(self) -> Iterator[None]:
        """The journal, which one process writes, and only where there is a folder."""
        if self.run.folder is None or not self.run.processes.first:
            yield
            return
        with contextlib.closing(Journal(self.run.folder, self.journal_start)) as self.journal:
            yield

    def _step(self, network: nn.Module, batch: TrainingBatch) -> tuple[float, Tensor, Any]:
        """One step of Algorithm 1: embed, solve for codes, and go down the loss (lines 3 to 6)."""
        run = self.run
        # Dropout depends on the step and the process, not on how the run came here.
        seeds = np.random.SeedSequence([*run.batches.seed, batch.step, run.processes.rank])
        run.processes.seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
        embeddings = network(batch.inputs.to(run.processes.device))
        embeddings = run.processes.gather(embeddings)
        labels = torch.from_numpy(batch.labels).to(embeddings.device)
        codes, chosen = None, None
        if run.coder is not None:
            rows = embeddings.detach().float().cpu().numpy()
            refuse_infinite(float(np.abs(rows).sum()), "the network's output", batch.step)
            run.coder.active = run.settings.active_at(batch.step)
            codes = run.coder.codes(rows, batch.labels)
            chosen = torch.from_numpy(codes).to(embeddings.device)
        more = {**self._shares(batch, embeddings), **self._neighbours(batch, embeddings)}
        loss = run.loss(embeddings, labels, chosen, **more)
        value = float(loss.detach())
        refuse_infinite(value, "the loss", batch.step)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return value, embeddings, codes

    def _shares(self, batch: TrainingBatch, embeddings: Tensor) -> dict[str, Tensor]:
        """What of which buckets is each item's class's [B, …], for the one loss that asks."""
        coder = self.run.coder
        if not isinstance(self.run.loss, CodeLoss) or coder is None or coder.owners is None:
            return {}
        classes, places = np.unique(coder.owners[batch.labels], return_inverse=True)
        buckets, shares = coder.class_buckets(classes)
        device = embeddings.device
        return {
            "shares": torch.from_numpy(shares[places]).to(device),
            "buckets": torch.from_numpy(buckets[places]).to(device),
        }

    def _neighbours(self, batch: TrainingBatch, embeddings: Tensor) -> dict[str, Tensor]:
        """What the batch's items are ranked by, and their classes, for the same loss if it asks."""
        run = self.run
        if not isinstance(run.loss, CodeLoss) or not run.loss.neighbours:
            return {}
        ranking = embeddings.detach()
        if run.ranker is not None:
            with torch.no_grad():
                own = run.ranker(batch.inputs.to(embeddings.device))
                ranking = run.processes.gather(own)
        owners = None if run.coder is None else run.coder.owners
        classes = batch.labels if owners is None else owners[batch.labels]
        return {"ranking": ranking, "classes": torch.from_numpy(classes).to(embeddings.device)}

    def _log(
        self, loss: float, rate: float, batch: TrainingBatch, embeddings: Tensor, codes: Any
    ) -> None:
        if not self.run.processes.first:
            return
        seconds, steps = time.perf_counter() - self.since, self.step - self.logged
        values = {
            "loss": loss,
            "rate": rate,
            "items_per_second": steps * self.run.stage.batch / seconds,
            "seconds": self.seconds,
        }
        if self.run.coder is not None:
            values["solver_share"] = self.run.coder.seconds / seconds
            if self.run.settings.first_active is not None:
                values["active"] = self.run.coder.active
            rows = embeddings.detach().float().cpu().numpy()
            values |= self.run.coder.report(codes, rows, batch.labels)
            self.facts = (
                f"  solver {values['solver_share']:.1%}  buckets {values['buckets_effective']:.0f}"
            )
        self._write(values)
        self.since, self.logged = time.perf_counter(), self.step

    def _write(self, values: dict[str, Any]) -> None:
        if self.journal is not None:
            self.journal.write(self.run.name, self.step, values)

    def _revive(self) -> None:
        """Start buckets that no group has chosen anew, now and then; see ``revive``.

        All processes do the same: codes, weights and the seed are the same in all of them.
        """
        run, coder = self.run, self.run.coder
        due = self.step % max(1, run.stage.steps // REVIVALS) == 0
        if coder is None or not run.settings.revive or not due or run.settings.settled(self.step):
            return
        loads = coder.held(run.network.outputs)
        if loads is None:
            return
        seeds = np.random.SeedSequence([*run.batches.seed, self.step])
        count = revive(run.network, self.optimiser, loads, np.random.default_rng(seeds))
        self._write({"revived": count})

    def _validate(self, validate: Callable[[EmbeddingNetwork], dict[str, Any]]) -> None:
        start, better = time.perf_counter(), False
        if self.run.processes.first:
            values = validate(self.run.network)
            self._write({"validation": True, **values})
            self.progress.say(f"{self.run.name} step {self.step}: {in_words(values)}")
            better = self.best.improves(values)
        if self.run.processes.any(better):
            self._save("best")
        self.run.processes.wait()
        self.since += time.perf_counter() - start  # it counts in no step's time

    def _save(self, name: str) -> None:
        if not self.run.processes.first and self.run.folder is not None:
            return  # in memory each keeps its own
        tensors = state_tensors(self.run.network, self.run.loss, self.optimiser)
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            raise TrainingError(f"a weight is not finite after step {self.step}")
        coder = self.run.coder
        record = {
            "stage": self.run.name,
            "step": self.step,
            "journal": 0 if self.journal is None else self.journal.length,
            "seconds": self.seconds,
            **({} if coder is None else coder.record()),
            "best": dataclasses.asdict(self.best),
        }
        self.run.checkpoints.save(name, record, tensors)


def make_optimiser(
    network: EmbeddingNetwork, loss: nn.Module, stage: Stage
) -> torch.optim.Optimizer:
    """Adam or SGD over the head at the full rate, the backbone at its share of it.

    Weight decay touches weights only: no bias, no normalisation. It is L2 in the gradient, as the
    authors' code had it, not decoupled.
    """
    groups: list[dict[str, Any]] = []
    backbone = stage.rate * stage.backbone_rate
    if backbone > 0:
        groups += _groups(network.backbone, backbone, stage.decay)
    else:
        network.backbone.requires_grad_(False)
    groups += _groups(network.head, stage.rate, stage.head_decay)
    groups += _groups(loss, stage.rate, stage.head_decay)
    for group in groups:
        group["full_rate"] = group["lr"]
    if stage.optimiser == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, lr=stage.rate, momentum=0.9, nesterov=True)


def _groups(module: nn.Module, rate: float, decay: float) -> list[dict[str, Any]]:
    weights = [value for value in module.parameters() if value.ndim > 1]
    others = [value for value in module.parameters() if value.ndim <= 1]
    made = [
        {"params": weights, "lr": rate, "weight_decay": decay},
        {"params": others, "lr": rate, "weight_decay": 0.0},
    ]
    return [group for group in made if group["params"]]


def set_rate(optimiser: torch.optim.Optimizer, stage: Stage, step: int) -> float:
    """Give each group its rate at ``step``; returns the head's."""
    scale = stage.schedule.scale(step, stage.steps)
    for group in optimiser.param_groups:
        group["lr"] = group["full_rate"] * scale
    return stage.rate * scale


def revive(
    network: EmbeddingNetwork,
    optimiser: torch.optim.Optimizer,
    loads: NDArray[np.int64],
    rng: np.random.Generator,
) -> int:
    """Start buckets that nobody has anew near those that most groups share; returns how many.

    The output of an empty bucket becomes a copy of that of a shared one, a little aside, so that
    the next codes can part the groups which were together. Each shared bucket is copied once at
    most, the fullest first; where none is shared, nothing changes.

    Args:
        network: whose last layer has an output for each bucket.
        optimiser: of its weights; momentum of what starts anew is zero. Adam's mean squares are
            those of the copied output: with none its first steps would be three times as long.
        loads: how many groups are in each bucket [d].
        rng: draws how far aside.
    """
    assert isinstance(network.head, nn.Linear)
    shared = np.argsort(-loads, kind="stable")[: int((loads > 1).sum())]
    empty = np.flatnonzero(loads == 0)
    count = min(len(shared), len(empty))
    to, of = torch.from_numpy(empty[:count]), torch.from_numpy(shared[:count])
    with torch.no_grad():
        for parameter in (network.head.weight, network.head.bias):
            parameter[to] = parameter[of]
            for name, value in optimiser.state[parameter].items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value[to] = value[of] if name == "exp_avg_sq" else 0.0
        weight = network.head.weight
        drawn = torch.from_numpy(rng.standard_normal((count, weight.shape[1]))).to(weight)
        weight[to] += ASIDE * drawn * weight[of].square().mean(1, keepdim=True).sqrt()
    return count


def refuse_infinite(value: float, what: str, step: int) -> None:
    """Stop where a number is NaN or infinite."""
    if not math.isfinite(value):
        raise TrainingError(f"{what} is {value} at step {step}")


@contextlib.contextmanager
def explained(checkpoints: Checkpoints, processes: Processes, batch: int) -> Iterator[None]:
    """Turn what ends a training into one message with what to do and the last good checkpoint."""
    try:
        yield
        return
    except TrainingError as error:
        trouble, cause = f"{error}; lower the rate, or look for bad items", error
    except torch.OutOfMemoryError as error:
        trouble = f"{processes.device} has no memory for a batch of {batch}; make it smaller"
        cause = error  # type: ignore[assignment]
    except RuntimeError as error:
        if processes.world == 1 or not _is_lost(error):
            raise
        trouble = f"process {processes.rank} lost another one: {str(error).splitlines()[0]}"
        cause = error  # type: ignore[assignment]
    path = checkpoints.path("last")
    kept = "there is no checkpoint yet"
    if checkpoints.exists("last"):
        kept = f"the last good checkpoint is {path}; a run in this folder goes on from it"
    raise TrainingError(f"{trouble}; {kept}") from cause


def _is_lost(error: RuntimeError) -> bool:
    """Whether it is trouble between processes, not in the network."""
    if isinstance(error, torch.distributed.DistError):
        return True
    words = ("gloo", "nccl", "connection", "timed out", "socket")
    return any(word in str(error).lower() for word in words)


class Interruption:
    """While it is entered, a first signal only sets ``asked``; a second one interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        # Only a main thread may set handlers; elsewhere the caller's own stay.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
