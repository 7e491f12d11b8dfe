"""The loop of one stage: steps, rates, validations, checkpoints, signals and troubles."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flowhash.errors import InputError, TrainingError
from flowhash.learn.batch_coder import BatchCoder
from flowhash.learn.batches import Batches, TrainingBatch
from flowhash.learn.losses import MetricLoss
from flowhash.learn.settings import Settings, Stage
from flowhash.learn.training.checkpoints import Checkpoint, Checkpoints, restore, state_tensors
from flowhash.learn.training.process_group import Processes
from flowhash.learn.training.training_log import Journal, NoJournal, Progress
from flowhash.learn.training.validation import Best, in_words
from flowhash.networks import EmbeddingNetwork

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StageRun:
    """One stage, ready to run.

    Attributes:
        name: "base" or "hash".
        stage: its settings.
        network: what is trained; it is on the processes' device.
        loss: what is minimised.
        batches: what it is trained on.
        checkpoints: where its states are kept.
        coder: solves for codes in the hash stage, None in the base stage.
        validate: measures the network on the validation split, or None.
        before: bytes of ``metrics.jsonl`` that the stage before wrote.
    """

    name: str
    stage: Stage
    network: EmbeddingNetwork
    loss: MetricLoss
    batches: Batches
    checkpoints: Checkpoints
    coder: BatchCoder | None = None
    validate: Callable[[EmbeddingNetwork], dict[str, Any]] | None = None
    before: int = 0


def train_stage(
    run: StageRun,
    settings: Settings,
    folder: Path | None,
    processes: Processes,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train one stage to its end, from its last checkpoint if there is one.

    The network ends with the weights of the best validation. Returns the last checkpoint's record.
    Without a folder there is no journal.

    Raises:
        TrainingError: the loss is not finite, memory or another process is gone. The message names
            the last good checkpoint, from which the same call goes on.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the state was saved first, the same call goes on.
    """
    checkpoints = run.checkpoints
    optimiser = make_optimiser(run.network, run.loss, run.stage)
    state = _resume(checkpoints.load("last"), run, optimiser)
    if state.step < run.stage.steps:
        loop = _Loop(run, settings, folder, processes, optimiser, state, quiet)
        with explained(checkpoints, processes, run.stage.batch):
            loop.train()
    processes.wait()
    best = checkpoints.load("best") or checkpoints.load("last")
    last = checkpoints.load("last")
    assert best is not None
    assert last is not None
    run.network.load_state_dict(best.part("network"))
    return last.record


@dataclass
class _State:
    """Where a stage is, beside its tensors."""

    step: int = 0
    journal: int = 0
    seconds: float = 0.0
    best: Best = dataclasses.field(default_factory=Best)


def _resume(last: Checkpoint | None, run: StageRun, optimiser: torch.optim.Optimizer) -> _State:
    if last is None:
        return _State(journal=run.before)
    record = last.record
    try:
        restore(last, run.network, run.loss, optimiser)
    except (RuntimeError, IndexError) as error:
        raise InputError(
            f"the checkpoint of step {record['step']} does not fit the network: {error}; train "
            "with the same network, or in another folder"
        ) from error
    if run.coder is not None and record["prices"] is not None:
        run.coder.prices = np.array(record["prices"])
        run.coder.loads = None if record["loads"] is None else np.array(record["loads"])
    return _State(record["step"], record["journal"], record["seconds"], Best(**record["best"]))


class _Loop:
    """The moving parts of one stage while it runs."""

    def __init__(
        self,
        run: StageRun,
        settings: Settings,
        folder: Path | None,
        processes: Processes,
        optimiser: torch.optim.Optimizer,
        state: _State,
        quiet: bool,
    ) -> None:
        self.run, self.settings, self.processes = run, settings, processes
        self.checkpoints, self.optimiser, self.state = run.checkpoints, optimiser, state
        self.network: nn.Module = processes.wrap(run.network)
        self.journal: Journal | NoJournal | None = None
        if processes.first and folder is None:
            self.journal = NoJournal()
        elif processes.first and folder is not None:
            path = folder / "metrics.jsonl"
            self.journal = Journal(path, state.journal, folder / "tensorboard")
        self.progress = Progress(
            f"{run.name} ({run.stage.loss})", run.stage.steps, state.step,
            quiet or not processes.first,
        )  # fmt: skip
        self.since, self.logged = time.perf_counter(), state.step
        self.facts = ""  # of the last line of the journal, beside the bar

    def train(self) -> None:
        """All steps that are left."""
        run, every = self.run, self.settings
        self.network.train()
        if run.stage.backbone_rate == 0:  # frozen: statistics of normalisation stay as they are too
            run.network.backbone.eval()
        began = time.perf_counter() - self.state.seconds
        with self._closing(), Interruption() as interruption, self.progress as progress:
            for batch in run.batches.between(self.state.step, run.stage.steps):
                rate = set_rate(self.optimiser, run.stage, batch.step)
                loss, embeddings, codes = self._step(batch)
                done = self.state.step = batch.step + 1
                self.state.seconds = time.perf_counter() - began
                last = done == run.stage.steps
                if done % every.log_every == 0 or last:
                    self._log(loss, rate, batch, embeddings, codes)
                if run.validate is not None and (done % every.validate_every == 0 or last):
                    self._validate()
                    self.state.seconds = time.perf_counter() - began
                stop = self.processes.any(interruption.asked)
                if done % every.checkpoint_every == 0 or last or stop:
                    self._save("last")
                progress.step(done, f"loss {loss:.4f}  rate {rate:.1e}{self.facts}")
                if stop:
                    raise KeyboardInterrupt

    def _step(self, batch: TrainingBatch) -> tuple[float, Tensor, Any]:
        """One step of Algorithm 1: embed, solve for codes, and go down the loss (lines 3 to 6)."""
        run = self.run
        # Dropout depends on the step and the process, not on how the run came here.
        seeds = np.random.SeedSequence([*run.batches.seed, batch.step, self.processes.rank])
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
        embeddings = self.network(batch.inputs.to(self.processes.device))
        embeddings = self.processes.gather(embeddings)
        labels = torch.from_numpy(batch.labels).to(embeddings.device)
        codes = None
        if run.coder is not None:
            rows = embeddings.detach().float().cpu().numpy()
            refuse_infinite(float(np.abs(rows).sum()), "the network's output", batch.step)
            codes = run.coder.codes(rows, batch.labels)
            chosen = torch.from_numpy(codes).to(embeddings.device)
            loss = run.loss(embeddings, labels, chosen)
        else:
            loss = run.loss(embeddings, labels)
        value = float(loss.detach())
        refuse_infinite(value, "the loss", batch.step)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return value, embeddings, codes

    def _log(
        self, loss: float, rate: float, batch: TrainingBatch, embeddings: Tensor, codes: Any
    ) -> None:
        if self.journal is None:
            return
        seconds, steps = time.perf_counter() - self.since, self.state.step - self.logged
        values = {
            "loss": loss,
            "rate": rate,
            "items_per_second": steps * self.run.stage.batch / seconds,
            "seconds": self.state.seconds,
        }
        if self.run.coder is not None:
            values["solver_share"] = self.run.coder.seconds / seconds
            rows = embeddings.detach().float().cpu().numpy()
            values |= self.run.coder.report(codes, rows, batch.labels)
            self.facts = (
                f"  solver {values['solver_share']:.1%}  buckets {values['buckets_effective']:.0f}"
            )
        self.journal.write(self.run.name, self.state.step, values)
        self.since, self.logged = time.perf_counter(), self.state.step

    def _validate(self) -> None:
        start = time.perf_counter()
        if self.journal is not None and self.run.validate is not None:
            values = self.run.validate(self.run.network)
            self.journal.write(self.run.name, self.state.step, {"validation": True, **values})
            self.progress.say(f"{self.run.name} step {self.state.step}: {in_words(values)}")
            if self.state.best.improves(values):
                self._save("best")
        self.processes.wait()
        self.since += time.perf_counter() - start  # it counts in no step's time

    def _save(self, name: str) -> None:
        if self.journal is None:
            return
        tensors = state_tensors(self.run.network, self.run.loss, self.optimiser)
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            raise TrainingError(f"a weight is not finite after step {self.state.step}")
        coder = self.run.coder
        prices = None if coder is None or coder.prices is None else coder.prices.tolist()
        record = {
            "stage": self.run.name,
            "step": self.state.step,
            "journal": self.journal.length,
            "seconds": self.state.seconds,
            "prices": prices,
            "loads": None if coder is None or coder.loads is None else coder.loads.tolist(),
            "best": dataclasses.asdict(self.state.best),
        }
        self.checkpoints.save(name, record, tensors)

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self.journal is not None:
                self.journal.close()


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
