"""Figures of table, encoder and server, as one answer."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from flowhash import __version__
from flowhash.serve.service import Service

LIMITS = ("max_body", "max_answer", "max_batch", "max_top", "max_pixels", "timeout")


def figures(service: Service) -> dict[str, Any]:
    """What ``flowhash table stats --json`` has, what the encoder takes, what the server allows."""
    table, options = service.table, service.options
    # JSON has no NaN: what cannot be measured is null.
    measured = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(service.stats()).items()
    }
    return {
        "metric": table.metric,
        "dtype": table.dtype,
        "ids": table.id_kind,
        "encoder": table.encoder,
        **measured,
        "takes": _takes(service),
        "writable": service.gate.writable,
        "needs_key": service.gate.writable and options.api_key is not None,
        "version": __version__,
        "limits": {name: getattr(options, name) for name in LIMITS},
    }


def _takes(service: Service) -> dict[str, Any] | None:
    if service.embedder is None:
        return None
    encoder = service.embedder.encoder
    size = encoder.preprocessing.size
    return {
        "kind": encoder.preprocessing.kind,
        "size": None if size is None else list(size),
        "inputs": service.embedder.inputs,
        "class_names": list(encoder.class_names),
    }
