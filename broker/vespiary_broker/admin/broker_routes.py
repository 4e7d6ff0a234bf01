"""Operations on the broker itself and its journal.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import records, volumes
from vespiary_broker.admin.handlers import Api
from vespiary_broker.admin.route import PAGE, Route

BROKER_ROUTES: Final = (
    Route(
        method="GET",
        path="/brokers",
        operation="listBrokers",
        tag="brokers",
        handler=Api.brokers,
        answers={200: records.BrokerPage},
    ),
    Route(
        method="GET",
        path="/volumes",
        operation="listVolumes",
        tag="brokers",
        handler=Api.volumes,
        answers={200: volumes.VolumePage},
    ),
    Route(
        method="GET",
        path="/journal",
        operation="showJournal",
        tag="journal",
        handler=Api.journal,
        answers={200: records.Journal},
    ),
    Route(
        method="GET",
        path="/journal/files",
        operation="listJournalFiles",
        tag="journal",
        handler=Api.journal_files,
        answers={200: records.JournalFilePage},
        query=PAGE,
    ),
)
