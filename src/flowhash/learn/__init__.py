"""Learning: the gated distance, losses, samplers and the two training stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.learn.adaptation import adapt_encoder as adapt_encoder
    from flowhash.learn.gated_metrics import (
        gated_distance as gated_distance,
        gated_product as gated_product,
    )
    from flowhash.learn.library_losses import (
        GatedDistance as GatedDistance,
        GatedSimilarity as GatedSimilarity,
        LibraryLoss as LibraryLoss,
        library_loss as library_loss,
    )
    from flowhash.learn.losses import (
        LOSSES as LOSSES,
        CrossEntropyLoss as CrossEntropyLoss,
        NPairsLoss as NPairsLoss,
        TripletLoss as TripletLoss,
        make_loss as make_loss,
    )
    from flowhash.learn.presets import PRESETS as PRESETS, preset as preset, suggest as suggest
    from flowhash.learn.samplers import (
        ClassBalancedSampler as ClassBalancedSampler,
        PairSampler as PairSampler,
    )
    from flowhash.learn.settings import Schedule as Schedule, Settings as Settings, Stage as Stage
    from flowhash.learn.train_encoder import train as train, train_base as train_base
    from flowhash.learn.training.training_loop import Coder as Coder

if TYPE_CHECKING:  # for other rooms
    from flowhash.learn.adaptation import sample_size as sample_size
    from flowhash.learn.presets import vector_settings as vector_settings
    from flowhash.learn.routing.fit_vectors import (
        ItemBuckets as ItemBuckets,
        RouterTrial as RouterTrial,
        fit_vectors as fit_vectors,
        is_router as is_router,
        router_encoder as router_encoder,
        share_items as share_items,
        suit_router as suit_router,
    )
    from flowhash.learn.routing.second_buckets import (
        SECOND_NOTE as SECOND_NOTE,
        SecondRule as SecondRule,
        second_codes as second_codes,
    )
    from flowhash.learn.samplers import enough_of_each as enough_of_each
    from flowhash.learn.settings import DEFAULT_PENALTY as DEFAULT_PENALTY
    from flowhash.learn.settings_choice import (
        Trial as Trial,
        choose_for_new_classes as choose_for_new_classes,
        choose_settings as choose_settings,
        for_new_classes as for_new_classes,
    )
    from flowhash.learn.stages import hash_start as hash_start
    from flowhash.learn.training.checkpoints import (
        Checkpoints as Checkpoints,
        best_validation as best_validation,
        training_seconds as training_seconds,
    )
    from flowhash.learn.training.process_group import (
        Processes as Processes,
        join_processes as join_processes,
    )
    from flowhash.learn.training.training_journal import read_journal as read_journal
    from flowhash.learn.whitening import original_vectors as original_vectors

if TYPE_CHECKING:  # for the benchmarks
    from flowhash.learn.losses import MetricLoss as MetricLoss

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
