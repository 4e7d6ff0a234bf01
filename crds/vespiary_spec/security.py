"""Users and permissions: where users stand, and which roles may do what at which addresses.

Owns: the names of the permissions, which are the reference system's.
Never: decides anything (that is the engine).
Called by: `settings`, which users import from, `resources` and `security_checks`.
"""

import enum
from typing import Annotated

import msgspec

from vespiary_spec import limits
from vespiary_spec.addresses import ADDRESS_PATTERN
from vespiary_spec.model import Change, setting
from vespiary_spec.scheduling import Part

ROLE_PATTERN = r"^[^\x00-\x20\x7f#:,]{1,200}$"
"""Names of roles, as the users file takes them."""

ADMIN_ROLE = "admin"
"""The role of administrators."""

ANONYMOUS_ROLE = "anonymous"
"""The name of whoever comes in without a login, and its role unless `anonymous-role` says more."""


class Permission(enum.StrEnum):
    """What a role may do at an address; the value is the setting's name in Python."""

    CREATE_ADDRESS = "create_address"
    DELETE_ADDRESS = "delete_address"
    CREATE_DURABLE_QUEUE = "create_durable_queue"
    DELETE_DURABLE_QUEUE = "delete_durable_queue"
    CREATE_NON_DURABLE_QUEUE = "create_non_durable_queue"
    DELETE_NON_DURABLE_QUEUE = "delete_non_durable_queue"
    SEND = "send"
    CONSUME = "consume"
    BROWSE = "browse"
    MANAGE = "manage"


class WildcardSubscriptions(enum.StrEnum):
    """What becomes of a subscription to a wildcard of which its user may have only a part."""

    FILTER = "FILTER"
    REJECT = "REJECT"


_AllowAnonymous = Annotated[
    bool,
    setting(
        "Let clients in without a login, with the role of `anonymous-role`. They are no "
        "administrators, and a client that sends a user name still needs the right password.",
        change=Change.RESTART,
    ),
]
_AnonymousRole = Annotated[
    str,
    setting(
        "Role of clients that come in without a login; any but `admin`. Users may have it too.",
        change=Change.RESTART,
        pattern=ROLE_PATTERN,
        max_length=200,
    ),
]
_WildcardSubscriptions = Annotated[
    WildcardSubscriptions,
    setting(
        "What becomes of a subscription to a wildcard, or of a look at the messages of one, "
        "if its user has the permission for only a part of the addresses. FILTER grants it "
        "and leaves the other addresses out; REJECT rejects it.",
        change=Change.RESTART,
    ),
]


class Security(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who may log in."""

    users_file: Annotated[
        str | None,
        setting(
            "File of users with salted password hashes, kept by `vespiary user`.",
            change=Change.RESTART,
            default_text="`users` below `data-directory`",
        ),
    ] = None
    allow_anonymous_on_loopback: Annotated[
        bool,
        setting(
            "Let clients in without a login while every listener is on loopback, no user has ever "
            "existed and there are no `security-settings`.",
            change=Change.RESTART,
        ),
    ] = True
    allow_anonymous: _AllowAnonymous = False
    anonymous_role: _AnonymousRole = ANONYMOUS_ROLE
    wildcard_subscriptions: _WildcardSubscriptions = WildcardSubscriptions.FILTER


Role = Annotated[str, setting("A role.", pattern=ROLE_PATTERN, max_length=200)]
_ROLES_MAX = 100


class SecuritySettings(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Roles by permission, for the addresses that a match covers.

    The most specific match alone counts: what it leaves out nobody may do, whatever a wider match
    says.
    """

    create_address: Annotated[
        tuple[Role, ...],
        setting(
            "Roles that may make an address, also by sending to it or subscribing.",
            change=Change.RELOAD,
            max_length=_ROLES_MAX,
        ),
    ] = ()
    delete_address: Annotated[
        tuple[Role, ...],
        setting("Roles that may delete an address.", change=Change.RELOAD, max_length=_ROLES_MAX),
    ] = ()
    create_durable_queue: Annotated[
        tuple[Role, ...],
        setting(
            "Roles that may make a queue that survives a restart: also by sending to one that is "
            "not there, or by a durable subscription.",
            change=Change.RELOAD,
            max_length=_ROLES_MAX,
        ),
    ] = ()
    delete_durable_queue: Annotated[
        tuple[Role, ...],
        setting(
            "Roles that may delete such a queue, or end a durable subscription for good.",
            change=Change.RELOAD,
            max_length=_ROLES_MAX,
        ),
    ] = ()
    create_non_durable_queue: Annotated[
        tuple[Role, ...],
        setting(
            "Roles that may make a queue that goes with a restart: every subscription to a topic "
            "makes one.",
            change=Change.RELOAD,
            max_length=_ROLES_MAX,
        ),
    ] = ()
    delete_non_durable_queue: Annotated[
        tuple[Role, ...],
        setting(
            "Roles that may delete such a queue. One that goes by itself, with its subscription, "
            "needs none.",
            change=Change.RELOAD,
            max_length=_ROLES_MAX,
        ),
    ] = ()
    send: Annotated[
        tuple[Role, ...],
        setting("Roles that may send messages.", change=Change.RELOAD, max_length=_ROLES_MAX),
    ] = ()
    consume: Annotated[
        tuple[Role, ...],
        setting("Roles that may take messages.", change=Change.RELOAD, max_length=_ROLES_MAX),
    ] = ()
    browse: Annotated[
        tuple[Role, ...],
        setting(
            "Roles that may look at messages without taking them.",
            change=Change.RELOAD,
            max_length=_ROLES_MAX,
        ),
    ] = ()
    manage: Annotated[
        tuple[Role, ...],
        setting(
            "Roles that may pause, change and empty the address and its queues, and move, change "
            "and remove their messages, by the HTTP API. The role `admin` may everywhere.",
            change=Change.RELOAD,
            max_length=_ROLES_MAX,
        ),
    ] = ()


class SecuritySettingsEntry(
    SecuritySettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Permissions at the addresses that a match covers."""

    match: Annotated[
        str,
        setting(
            "Name or pattern: `*` for one word, `#` for any number of words between dots.",
            pattern=ADDRESS_PATTERN,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]


class AuthUser(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a user of the Secret may do."""

    name: Annotated[str, setting("Name of the user.", max_length=200)]
    roles: Annotated[
        tuple[Role, ...],
        setting("Its roles, as `securitySettings` names them.", max_length=_ROLES_MAX),
    ] = ()


class Auth(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Users of the broker."""

    secret_name: Annotated[
        str | None,
        setting(
            "Secret whose keys are user names and values their passwords.",
            max_length=253,
            default_text="a Secret with a generated password of `admin`, made once",
        ),
    ] = None
    users: Annotated[
        tuple[AuthUser, ...],
        setting(
            "Roles of users of the Secret. `admin` has the role `admin` in any case.",
            key="name",
            max_length=1000,
        ),
    ] = ()
    allow_short_passwords: Annotated[
        bool,
        setting("Take new passwords of fewer than 8 characters from the Secret."),
    ] = False
    allow_anonymous: _AllowAnonymous = False
    anonymous_role: _AnonymousRole = ANONYMOUS_ROLE
    wildcard_subscriptions: _WildcardSubscriptions = WildcardSubscriptions.FILTER
