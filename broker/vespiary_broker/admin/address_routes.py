"""Operations on addresses and diverts.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import change_records, changes, divert_records, diverts, records
from vespiary_broker.admin.handlers import Api
from vespiary_broker.admin.route import CHANGE_WITH_BODY, PAGE, PERSIST, Route

ADDRESS_ROUTES: Final = (
    Route(
        method="GET",
        path="/addresses",
        operation="listAddresses",
        tag="addresses",
        handler=Api.addresses,
        answers={200: records.AddressPage},
        query=PAGE,
    ),
    Route(
        method="POST",
        path="/addresses",
        operation="createAddress",
        tag="addresses",
        handler=Api.create_address,
        answers={200: records.Address, 201: records.Address},
        problems=(400, 413, 415),
        body=records.NewAddress,
    ),
    Route(
        method="GET",
        path="/addresses/{name}",
        operation="showAddress",
        tag="addresses",
        handler=Api.address,
        answers={200: records.Address},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/addresses/{name}/settings",
        operation="showAddressSettings",
        tag="addresses",
        handler=Api.address_settings,
        answers={200: records.EffectiveSettings},
        problems=(400, 404),
        is_private=True,
    ),
    Route(
        method="PATCH",
        path="/addresses/{name}",
        operation="changeAddress",
        tag="addresses",
        handler=changes.change_address,
        answers={200: records.Address},
        problems=(400, 404, 409, 413, 415),
        body=change_records.AddressChanges,
    ),
    Route(
        method="POST",
        path="/addresses/{name}/pause",
        operation="pauseAddress",
        tag="addresses",
        handler=changes.pause_address,
        answers={200: records.Address},
        problems=(400, 404),
        query=(PERSIST,),
    ),
    Route(
        method="POST",
        path="/addresses/{name}/resume",
        operation="resumeAddress",
        tag="addresses",
        handler=changes.resume_address,
        answers={200: records.Address},
        problems=(400, 404),
    ),
    Route(
        method="DELETE",
        path="/addresses/{name}",
        operation="deleteAddress",
        tag="addresses",
        handler=Api.delete_address,
        answers={204: None},
        problems=(400, 404, 409),
    ),
    Route(
        method="GET",
        path="/addresses/{name}/duplicate-ids",
        operation="showDuplicateIds",
        tag="addresses",
        handler=Api.duplicates,
        answers={200: records.DuplicateIds},
        problems=(400, 404),
        query=(PAGE[0],),
        is_private=True,
    ),
    Route(
        method="DELETE",
        path="/addresses/{name}/duplicate-ids",
        operation="clearDuplicateIds",
        tag="addresses",
        handler=Api.clear_duplicates,
        answers={200: records.Forgotten},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/diverts",
        operation="listDiverts",
        tag="diverts",
        handler=diverts.list_diverts,
        answers={200: divert_records.DivertPage},
        query=PAGE,
    ),
    Route(
        method="POST",
        path="/diverts",
        operation="createDivert",
        tag="diverts",
        handler=diverts.create_divert,
        answers={200: divert_records.Divert, 201: divert_records.Divert},
        problems=CHANGE_WITH_BODY,
        body=divert_records.NewDivert,
    ),
    Route(
        method="GET",
        path="/diverts/{name}",
        operation="showDivert",
        tag="diverts",
        handler=diverts.show_divert,
        answers={200: divert_records.Divert},
        problems=(400, 404),
    ),
    Route(
        method="DELETE",
        path="/diverts/{name}",
        operation="deleteDivert",
        tag="diverts",
        handler=diverts.delete_divert,
        answers={204: None},
        problems=(400, 404),
    ),
)
