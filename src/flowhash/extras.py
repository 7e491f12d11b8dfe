"""Optional dependencies: import them where they are used, fail with the extra's name."""

from __future__ import annotations

import importlib
from types import ModuleType

from flowhash.errors import MissingExtraError

# Packages that are installed under another name than they are imported.
PACKAGES = {
    "PIL": "pillow",
    "psycopg_pool": "psycopg-pool",
    "pytorch_metric_learning": "pytorch-metric-learning",
    "qdrant_client": "qdrant-client",
    "sklearn": "scikit-learn",
}


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, which the extra ``extra`` installs.

    Raises:
        MissingExtraError: the module is not installed; the message has the command that does it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if missing.partition(".")[0] != module.partition(".")[0]:
            raise  # the module is there, but something it needs is not: not ours to explain
        package = PACKAGES.get(missing.partition(".")[0], missing.partition(".")[0])
        raise MissingExtraError(
            f"{package} is not installed; it comes with an extra of FlowHash: "
            f"pip install 'flowhash[{extra}]' (in a clone: pip install '.[{extra}]')"
        ) from error
