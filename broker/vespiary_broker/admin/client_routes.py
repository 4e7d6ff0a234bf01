"""Operations on what clients have open: connections, consumers, transactions.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import connections, records, transaction_records, transactions
from vespiary_broker.admin.handlers import Api
from vespiary_broker.admin.route import PAGE, QueryParameter, Route

CLIENT_ROUTES: Final = (
    Route(
        method="GET",
        path="/connections",
        operation="listConnections",
        tag="connections",
        handler=Api.connections,
        answers={200: records.ConnectionPage},
        query=PAGE,
        is_private=True,
    ),
    Route(
        method="DELETE",
        path="/connections/{name}",
        operation="closeConnection",
        tag="connections",
        handler=connections.close_connection,
        answers={200: records.Connection},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/consumers",
        operation="listConsumers",
        tag="consumers",
        handler=Api.consumers,
        answers={200: records.ConsumerPage},
        problems=(400, 404),
        query=(
            *PAGE,
            QueryParameter(
                name="queue", kind=str, default=None, description="Only those of this queue."
            ),
        ),
        is_private=True,
    ),
    Route(
        method="GET",
        path="/transactions",
        operation="listTransactions",
        tag="transactions",
        handler=transactions.list_transactions,
        answers={200: transaction_records.TransactionPage},
        query=PAGE,
        is_private=True,
    ),
    Route(
        method="GET",
        path="/transactions/{name}",
        operation="showTransaction",
        tag="transactions",
        handler=transactions.show_transaction,
        answers={200: transaction_records.Transaction},
        problems=(400, 404),
        is_private=True,
    ),
    *(
        Route(
            method="POST",
            path=f"/transactions/{{name}}/{act}",
            operation=f"{act}Transaction",
            tag="transactions",
            handler=handler,
            answers={200: transaction_records.Transaction},
            problems=(400, 404, 409),
        )
        for act, handler in (
            ("commit", transactions.commit_transaction),
            ("rollback", transactions.rollback_transaction),
        )
    ),
    Route(
        method="POST",
        path="/transactions/{name}/forget",
        operation="forgetTransaction",
        tag="transactions",
        handler=transactions.forget_transaction,
        answers={204: None},
        problems=(400, 404, 409),
    ),
)
