"""Items into a table of any kind, gone on with where it was interrupted; each is stored once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowhash.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flowhash.indexing.index_run import (
        IndexRun as IndexRun,
        TableChoices as TableChoices,
        open_table as open_table,
    )
    from flowhash.indexing.stored_codes import (
        StoredCodes as StoredCodes,
        share_table as share_table,
    )
    from flowhash.indexing.table_adaptation import (
        Adaptation as Adaptation,
        adapt_table as adapt_table,
    )
    from flowhash.indexing.table_notes import TableNotes as TableNotes, own_encoder as own_encoder

if TYPE_CHECKING:  # for other rooms
    from flowhash.indexing.index_run import (
        check_id_kind as check_id_kind,
        check_items as check_items,
    )
    from flowhash.indexing.table_adaptation import (
        ENCODER as ENCODER,
        adaptation_folder as adaptation_folder,
        adapted_before as adapted_before,
        check_adaptable as check_adaptable,
        tell_index as tell_index,
    )
    from flowhash.indexing.table_notes import (
        INDEX as INDEX,
        SETTINGS as SETTINGS,
        LostEncoderError as LostEncoderError,
        OtherEncoderError as OtherEncoderError,
        fingerprint_at as fingerprint_at,
    )

__all__, __getattr__, __dir__ = lazy_exports(__spec__)
