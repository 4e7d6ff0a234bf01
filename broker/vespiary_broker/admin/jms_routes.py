"""Operations on JMS objects.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import jms, records
from vespiary_broker.admin.route import CHANGE_WITH_BODY, FORCE, PAGE, Route
from vespiary_broker.engine.jms import JmsKind


def _jms_routes(
    kind: JmsKind, singular: str, plural: str, body: type[records.Body]
) -> tuple[Route, ...]:
    """Return the four operations on JMS objects of a kind."""
    path = f"/jms/{jms.COLLECTIONS[kind][0]}"
    is_destination = kind is not JmsKind.CONNECTION_FACTORY
    return (
        Route(
            method="GET",
            path=path,
            operation=f"list{plural}",
            tag="jms",
            handler=jms.lister(kind),
            answers={200: records.JmsPage},
            query=PAGE,
        ),
        Route(
            method="POST",
            path=path,
            operation=f"create{singular}",
            tag="jms",
            handler=jms.maker(kind),
            answers={200: records.JmsObject, 201: records.JmsObject},
            problems=CHANGE_WITH_BODY,
            body=body,
        ),
        Route(
            method="GET",
            path=f"{path}/{{name}}",
            operation=f"show{singular}",
            tag="jms",
            handler=jms.shower(kind),
            answers={200: records.JmsObject},
            problems=(400, 404),
        ),
        Route(
            method="DELETE",
            path=f"{path}/{{name}}",
            operation=f"delete{singular}",
            tag="jms",
            handler=jms.remover(kind),
            answers={200: records.Removed},
            problems=(400, 404, 409) if is_destination else (400, 404),
            query=(FORCE,) if is_destination else (),
        ),
    )


JMS_ROUTES: Final = (
    *_jms_routes(JmsKind.QUEUE, "JmsQueue", "JmsQueues", records.NewJmsDestination),
    *_jms_routes(JmsKind.TOPIC, "JmsTopic", "JmsTopics", records.NewJmsDestination),
    *_jms_routes(
        JmsKind.CONNECTION_FACTORY,
        "ConnectionFactory",
        "ConnectionFactories",
        records.NewConnectionFactory,
    ),
    Route(
        method="GET",
        path="/jms/bindings",
        operation="listJndiNames",
        tag="jms",
        handler=jms.list_jndi_names,
        answers={200: records.JndiPage},
        query=PAGE,
    ),
    Route(
        method="DELETE",
        path="/jms/bindings/{name}",
        operation="removeJndiName",
        tag="jms",
        handler=jms.remove_jndi_name,
        answers={204: None},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/jms/jndi.properties",
        operation="showJndiProperties",
        tag="jms",
        handler=jms.show_properties,
        answers={200: None},
        problems=(400,),
        text_type=jms.PROPERTIES_TYPE,
    ),
)
