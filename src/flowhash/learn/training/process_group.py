"""Many processes: who this one is, and a batch of embeddings that all of them share.

Started by ``torchrun``, each process takes its part of the global batch, and all of them see the
embeddings of the whole: class means, codes and losses are those of one process with that batch.
"""

from __future__ import annotations

import atexit
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from flowhash.errors import TrainingError
from flowhash.networks import EmbeddingNetwork, device_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Processes:
    """This process among its fellows."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def seed(self, number: int) -> None:
        """Seed what is drawn on this process's device.

        ``torch.manual_seed`` does so for every kind of device there could be, and for those that
        are not there it writes down the call stack each time: some 80 times as long.
        """
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)

    def wrap(self, network: EmbeddingNetwork) -> nn.Module:
        """The network with gradients averaged over processes, or as it is for a single one."""
        if self.world == 1:
            return network
        wrapped: nn.Module = network
        if self.device.type == "cuda":
            convert = nn.SyncBatchNorm.convert_sync_batchnorm
            wrapped = convert(network)  # type: ignore[no-untyped-call]
        # Networks of others may have weights that their output does not depend on.
        foreign = network.spec["backbone"]["name"] in ("transformers", "timm", "custom")
        return DistributedDataParallel(wrapped, find_unused_parameters=foreign)

    def gather(self, embeddings: Tensor) -> Tensor:
        """The embeddings of the global batch [B, d] from this process's part [B / world, d]."""
        if self.world == 1:
            return embeddings
        made: Tensor = _Gather.apply(embeddings, self.rank, self.world)  # type: ignore[no-untyped-call]
        return made

    def any(self, flag: bool) -> bool:
        """Whether any process says yes; all of them must ask."""
        if self.world == 1:
            return flag
        votes = torch.tensor([int(flag)], device=self.device)
        distributed.all_reduce(votes, op=distributed.ReduceOp.MAX)
        return bool(votes.item())

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process of each machine does it before the others, who find it done."""
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        if local > 0:
            self.wait()
        yield
        if local == 0:
            self.wait()

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            distributed.barrier()


class _Gather(torch.autograd.Function):
    """All processes' rows, one after the other; the gradient of the own ones goes back.

    Every process computes the same global loss, so its own rows have their full gradient here. DDP
    then averages over processes what must be summed: the factor makes up for it.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank: int, world: int) -> Tensor:
        ctx.rank, ctx.world, ctx.count = rank, world, len(rows)
        parts = [torch.empty_like(rows) for _ in range(world)]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        start = ctx.rank * ctx.count
        return gradients[0][start : start + ctx.count] * ctx.world, None, None


def join_processes(device: str = "auto") -> Processes:
    """Join the processes that ``torchrun`` started, if it did.

    A group can be joined once in a process's life, so it is left only when the process ends.
    """
    chosen = device_of(device)
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not started and not distributed.is_initialized():
        return Processes(device=chosen)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    if not distributed.is_initialized():
        _form_group("nccl" if chosen.type == "cuda" else "gloo")
        atexit.register(_leave)
    return Processes(distributed.get_rank(), distributed.get_world_size(), chosen)


def _form_group(backend: str) -> None:
    """Find the other processes, as ``torchrun`` has started them now.

    Its store outlives processes that it starts anew, and torch would find there the addresses of
    those that are gone. A name that only the living agree on keeps them apart.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        distributed.init_process_group(backend)
        return
    store, rank, world = next(rendezvous("env://"))
    name = agreed_name(store, rank, world)
    fresh = distributed.PrefixStore(name, store)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=fresh, rank=rank, world_size=world)


def agreed_name(store: Any, rank: int, world: int) -> str:
    """A new name that all processes of this start know, whatever the store holds of earlier ones.

    Every process but the first asks under a random name; the first one answers whatever is asked,
    also what dead ones have asked, until all have said that they took its answer.

    Args:
        store: one of ``torch.distributed``.
        rank: of this process.
        world: how many there are.

    Raises:
        TrainingError: a process did not ask before the store's timeout.
    """
    mine = secrets.token_hex(8)
    if rank > 0:
        store.set(f"flowhash/asks/{rank}", mine)
        name = store.get(f"flowhash/answer/{mine}").decode()
        store.set(f"flowhash/took/{name}/{rank}", "")
        return str(name)
    missing, began = set(range(1, world)), time.monotonic()
    while missing:
        for other in sorted(missing):
            if store.check([f"flowhash/took/{mine}/{other}"]):
                missing.remove(other)
            elif store.check([f"flowhash/asks/{other}"]):
                asked = store.get(f"flowhash/asks/{other}").decode()
                store.set(f"flowhash/answer/{asked}", mine)
        if missing and time.monotonic() - began > store.timeout.total_seconds():
            raise TrainingError(
                f"processes {sorted(missing)} of {world} did not come; look at what they said"
            )
        time.sleep(0.01)
    return mine


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
