"""Items into a table of any kind, gone on with where it was interrupted; each is stored once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.indexing.resumable_indexing import (
        ResumableIndexing as ResumableIndexing,
        TableChoices as TableChoices,
        open_table as open_table,
    )
    from flowhash.indexing.table_notes import TableNotes as TableNotes, own_encoder as own_encoder

if TYPE_CHECKING:  # for other rooms
    from flowhash.indexing.resumable_indexing import ID_KINDS as ID_KINDS
    from flowhash.indexing.table_notes import (
        INDEX as INDEX,
        SETTINGS as SETTINGS,
        LostEncoderError as LostEncoderError,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
