"""What the API says of message groups.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `groups` and
`routes`.
"""

from __future__ import annotations

from vespiary_broker.admin.journal_records import Record


class GroupOwner(Record, frozen=True):
    """A group, or a bucket of groups, and the consumer that it belongs to.

    Attributes:
        group: The group's id, `JMSXGroupID`; empty for a bucket.
        bucket: Number of the bucket that groups share; null for a group of its own.
        connection: Number of the consumer's connection.
        subscription: Id that the client gave the consumer.
    """

    group: str
    bucket: int | None
    connection: int
    subscription: str


class GroupPage(Record, frozen=True):
    """Some groups of a queue that belong to consumers, in the order in which they began.

    Attributes:
        items: The groups.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[GroupOwner, ...]
    next: str | None


class GroupsReleased(Record, frozen=True):
    """Groups that find their consumers anew.

    Attributes:
        groups: How many belonged to a consumer.
    """

    groups: int
