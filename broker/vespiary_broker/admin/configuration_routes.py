"""Operations on the configuration.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import configuration, configuration_records
from vespiary_broker.admin.route import Route

CONFIGURATION_ROUTES: Final = (
    Route(
        method="GET",
        path="/configuration",
        operation="showConfiguration",
        tag="configuration",
        handler=configuration.show_configuration,
        answers={200: configuration_records.Configuration},
        is_private=True,
    ),
    Route(
        method="POST",
        path="/configuration/reload",
        operation="reloadConfiguration",
        tag="configuration",
        handler=configuration.reload_configuration,
        answers={200: configuration_records.Configuration},
        problems=(400, 409),
    ),
)
