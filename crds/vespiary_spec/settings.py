"""Every setting of the broker that works in this version.

Owns: names, defaults, units, bounds and change classes. A setting exists here
and nowhere else; `refusals` lists the names that are known but do not work yet,
and a name in that list is refused and left out of every schema even if its
field is still here (so moving a name between the two is one line).
Never: reads files or the machine.
Called by: the broker, the operator, the CLI and the generator.

Names and defaults are those of the reference system's persistence and paging
chapters where it has them.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from vespiary_spec import limits
from vespiary_spec.acceptor_tls import AcceptorTls, CertificateUser, SniCertificate
from vespiary_spec.acceptors import (
    DEFAULT_ACCEPTORS,
    Acceptor,
    AcceptorBase,
    Admin,
    AmqpLimits,
    MqttLimits,
    Protocol,
    SaslMechanism,
    StompLimits,
)
from vespiary_spec.addresses import (
    ADDRESS_DEFAULTS,
    Address,
    AddressFullPolicy,
    AddressSettings,
    DiskFullPolicy,
    Queue,
    RoutingType,
)
from vespiary_spec.diverts import Divert, DivertRoutingType, DivertSettings
from vespiary_spec.journal_kinds import (
    Directories,
    JournalType,
    PreallocationScope,
    PreallocationStrategy,
)
from vespiary_spec.lifecycle import DeletionPolicy
from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.naming import WildcardAddresses
from vespiary_spec.resource_limits import ResourceLimit
from vespiary_spec.security import Permission, Security, SecuritySettings
from vespiary_spec.websocket_limits import WebSocketLimits

__all__ = [
    "ADDRESS_DEFAULTS",
    "DEFAULT_ACCEPTORS",
    "Acceptor",
    "AcceptorBase",
    "AcceptorTls",
    "Address",
    "AddressFullPolicy",
    "AddressSettings",
    "Admin",
    "AmqpLimits",
    "BrokerSettings",
    "CertificateUser",
    "Configuration",
    "DeletionPolicy",
    "Directories",
    "DiskFullPolicy",
    "Divert",
    "DivertRoutingType",
    "JournalType",
    "MqttLimits",
    "Permission",
    "PreallocationScope",
    "PreallocationStrategy",
    "Protocol",
    "Queue",
    "ResourceLimit",
    "RoutingType",
    "SaslMechanism",
    "Security",
    "SecuritySettings",
    "SniCertificate",
    "StompLimits",
    "WebSocketLimits",
    "WildcardAddresses",
]

_KIB = 1024
_MIB = 1024 * 1024


class BrokerSettings(DivertSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Settings of the whole broker: top level of `broker.yaml`, `spec.config` of a Broker."""

    persistence_enabled: Annotated[
        bool,
        setting(
            "Whether anything is written to disk. false keeps messages in memory only "
            "(durability class D0), and all is lost at a stop.",
            change=Change.RESTART,
        ),
    ] = True
    data_directory: Annotated[
        str,
        setting(
            "Base of the directories below when they are relative or not given. A relative path "
            "starts at the folder of the configuration file, or without one at the folder in which "
            "the broker is started.",
            change=Change.IMMUTABLE,
            is_in_resource=False,
        ),
    ] = "data"
    bindings_directory: Annotated[
        str | None,
        setting(
            "Folder of the bindings journal: addresses, queues and counters. A relative path "
            "starts at `data-directory`.",
            change=Change.IMMUTABLE,
            is_in_resource=False,
            default_text="`bindings` below `data-directory`",
        ),
    ] = None
    create_bindings_dir: Annotated[
        bool,
        setting(
            "Create the bindings folder if it is missing; false refuses to start instead.",
            change=Change.RESTART,
            is_in_resource=False,
        ),
    ] = True
    jms_directory: Annotated[
        str | None,
        setting(
            "Folder of the JMS journal: JMS queues, topics, connection factories and JNDI names "
            "made through the API. It has files from its first use on. A relative path "
            "starts at `data-directory`.",
            change=Change.IMMUTABLE,
            is_in_resource=False,
            default_text="`bindings-directory`",
        ),
    ] = None
    journal_directory: Annotated[
        str | None,
        setting(
            "Folder of the message journal. Put it on a disk of its own. A relative path starts at "
            "`data-directory`.",
            change=Change.IMMUTABLE,
            is_in_resource=False,
            default_text="`journal` below `data-directory`",
        ),
    ] = None
    create_journal_dir: Annotated[
        bool,
        setting(
            "Create the journal folder if it is missing; false refuses to start instead.",
            change=Change.RESTART,
            is_in_resource=False,
        ),
    ] = True
    paging_directory: Annotated[
        str | None,
        setting(
            "Folder for page files, which hold messages for which there is no memory (see "
            "`max-size-bytes` and `global-max-size`). A relative path starts at `data-directory`.",
            change=Change.IMMUTABLE,
            is_in_resource=False,
            default_text="`paging` below `data-directory`",
        ),
    ] = None
    large_messages_directory: Annotated[
        str | None,
        setting(
            "Folder for the bodies of large messages, one file each. A relative path starts at "
            "`data-directory`.",
            change=Change.IMMUTABLE,
            is_in_resource=False,
            default_text="`large-messages` below `data-directory`",
        ),
    ] = None
    journal_type: Annotated[
        JournalType,
        setting(
            "Journal engine: ASYNCIO is Linux AIO with direct I/O, IO_URING the same over io_uring "
            "(forbidden by most container runtimes' default profile), NIO a thread with pwrite and "
            "fdatasync. All write the same files. Where IO_URING cannot work the broker takes "
            "ASYNCIO, and where that cannot, NIO; it says so in the log, the metrics and the "
            "status (see `journal-type-strict`).",
            change=Change.RESTART,
        ),
    ] = JournalType.ASYNCIO
    journal_type_strict: Annotated[
        bool,
        setting(
            "Refuse to start rather than take another engine than `journal-type`.",
            change=Change.RESTART,
        ),
    ] = False
    journal_datasync: Annotated[
        bool,
        setting(
            "Flush the disk before a write counts as done. false survives a killed process but "
            "not a power cut (durability class D1).",
            change=Change.RESTART,
        ),
    ] = True
    journal_sync_transactional: Annotated[
        bool,
        setting(
            "Confirm a commit or a rollback only when the journal holds it.",
            change=Change.RESTART,
        ),
    ] = True
    journal_sync_non_transactional: Annotated[
        bool,
        setting(
            "Confirm a send or an acknowledgement outside of transactions only when the journal "
            "holds it.",
            change=Change.RESTART,
        ),
    ] = True
    journal_file_size: Annotated[
        int,
        setting(
            "Size of one journal file. Files are created and filled ahead of need. Existing "
            "files keep their size.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=limits.JOURNAL_FILE_BYTES_MIN,
            maximum=limits.JOURNAL_FILE_BYTES_MAX,
            multiple_of=limits.BLOCK_BYTES,
        ),
    ] = 10 * _MIB
    journal_min_files: Annotated[
        int,
        setting(
            "Journal files that are created at the first start and kept as the floor of the pool.",
            unit=Unit.FILES,
            change=Change.RESTART,
            minimum=limits.JOURNAL_FILES_MIN,
            maximum=10000,
        ),
    ] = 2
    journal_pool_files: Annotated[
        int,
        setting(
            "Free journal files kept for use again; more are deleted. -1 keeps all.",
            unit=Unit.FILES,
            change=Change.RESTART,
            minimum=0,
            maximum=100000,
            special=-1,
        ),
    ] = -1
    journal_max_io: Annotated[
        int | None,
        setting(
            "Write requests that may be in flight. With ASYNCIO this many are reserved of the "
            "machine's `fs.aio-max-nr`; IO_URING takes nothing of it.",
            unit=Unit.REQUESTS,
            change=Change.RESTART,
            minimum=1,
            maximum=limits.AIO_DEPTH_MAX,
            default_text="500 with ASYNCIO and IO_URING, 1 with NIO",
        ),
    ] = None
    journal_buffer_timeout: Annotated[
        int,
        setting(
            "Upper bound of the time that a record may wait for others to be written with it. "
            "The journal needs no timer: it writes what has gathered as soon as the write before "
            "is done, so an idle journal never waits. 0 sets no bound.",
            unit=Unit.NANOSECONDS,
            change=Change.RESTART,
            minimum=0,
            maximum=1_000_000_000,
        ),
    ] = 0
    journal_buffer_size: Annotated[
        int,
        setting(
            "Limit of one record, and so of one message with its headers. Never larger than "
            "`journal-file-size`.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=16 * _KIB,
            maximum=limits.JOURNAL_WRITE_BYTES_MAX,
        ),
    ] = 490 * _KIB
    journal_preallocation_strategy: Annotated[
        PreallocationStrategy,
        setting(
            "How a journal file gets its size before it is used: `zeros` writes it in one large "
            "write, `chunked-zeros` in writes of 256 KiB (kinder to a disk that others use), "
            "`os-kernel-copy` has the kernel copy a template, `sparse-file` sets the length only, "
            "so that every block is allocated by the write that needs it. A way that the "
            "filesystem refuses is replaced by `chunked-zeros`, which log and metrics say.",
            change=Change.RESTART,
        ),
    ] = PreallocationStrategy.ZEROS
    journal_preallocation_scope: Annotated[
        PreallocationScope,
        setting(
            "When journal files get their size: `entire-journal` makes `journal-min-files` before "
            "the broker is ready, `entire-journal-async` makes them in the background; with both, "
            "files are then made ahead of need. `none` lets files grow with their content: every "
            "write costs the filesystem's journal a write of its own.",
            change=Change.RESTART,
        ),
    ] = PreallocationScope.ENTIRE_JOURNAL_ASYNC
    journal_device_block_size: Annotated[
        int | None,
        setting(
            "Unit of writes that the disk can do, a power of two. The broker refuses to start when "
            "the disk needs more. Writes are aligned to 4096 bytes in any case, so disks with "
            "larger units are refused by name.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=512,
            maximum=limits.BLOCK_BYTES,
            multiple_of=512,
            default_text="asks the disk",
        ),
    ] = None
    journal_file_open_timeout: Annotated[
        int,
        setting(
            "How long the journal may be without a file to write to before that is an error: it "
            "is then logged, `blocked` is set in API and metrics, and producers wait. The broker "
            "goes on by itself when the file comes.",
            unit=Unit.SECONDS,
            change=Change.RESTART,
            minimum=1,
            maximum=3600,
        ),
    ] = 5
    journal_lock_acquisition_timeout: Annotated[
        int,
        setting(
            "How long to wait for a folder that another broker holds; 0 says at once who holds it, "
            "-1 waits for good (the reference system's default, where a second broker stands by). "
            "Who holds it is logged when the waiting begins.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=0,
            maximum=86_400_000,
            special=-1,
        ),
    ] = 0
    journal_ownership_lease: Annotated[
        int,
        setting(
            "How long the broker confirms after it last read in the journal's volume that the "
            "journal is its own. Another machine's broker waits a tenth longer before it takes "
            "over a journal that was not let go of; a broker whose look at the disk takes longer "
            "holds its confirms back until one has succeeded.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=300,
            maximum=60_000,
        ),
    ] = 3000
    log_journal_write_rate: Annotated[
        bool,
        setting(
            "Log once a second how many writes, records and bytes the journal took, how many "
            "records shared a write, and how long a write took; nothing while it is idle.",
            change=Change.RESTART,
        ),
    ] = False
    journal_compact_min_files: Annotated[
        int,
        setting(
            "Files in use above which compaction is considered: messages, pages and prepared "
            "transactions that keep nearly empty files are moved to the journal's end, a little at "
            "a time. 0 switches it off: then a single one of them keeps all later files.",
            unit=Unit.FILES,
            change=Change.RESTART,
            minimum=0,
            maximum=1_000_000,
        ),
    ] = 10
    journal_compact_percentage: Annotated[
        int,
        setting(
            "Compaction begins when less than this share of the files in use is live, and goes on "
            "while it pays, mostly until two thirds are.",
            unit=Unit.PERCENT,
            change=Change.RESTART,
            minimum=0,
            maximum=100,
        ),
    ] = 30
    min_large_message_size: Annotated[
        int,
        setting(
            "Body above which a message is large: it goes to a file of its own as it arrives. "
            "What does not fit into `journal-buffer-size` is large too.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=limits.JOURNAL_WRITE_BYTES_MAX,
        ),
    ] = 102_400
    max_large_message_size: Annotated[
        int,
        setting(
            "Largest body of a large message; its sender gets an ERROR.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=2**50,
        ),
    ] = 2 * 1024 * _MIB
    large_message_sync: Annotated[
        bool,
        setting(
            "Flush the bodies of persistent large messages. false survives no power cut.",
            change=Change.RESTART,
        ),
    ] = True
    journal_max_attic_files: Annotated[
        int,
        setting(
            "Files left unfinished by a crash that hold something are moved to the folder `attic`; "
            "when it holds this many, they stay where they are. Neither is ever deleted.",
            unit=Unit.FILES,
            change=Change.RESTART,
            minimum=0,
            maximum=10000,
        ),
    ] = 10
    journal_retention_directory: Annotated[
        str | None,
        setting(
            "Folder for copies of full journal files, for `vespiary journal replay`. A file is not "
            "used again before its copy is there. Put it on another disk than the journal. A "
            "relative path starts at `data-directory`.",
            change=Change.RESTART,
            is_in_resource=False,
            default_text="no copies",
        ),
    ] = None
    journal_retention_period: Annotated[
        int | None,
        setting(
            "Copies older than this are removed. Write it with its unit, as in `168h`.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=1000,
            default_text="none is too old",
        ),
    ] = None
    journal_retention_storage_limit: Annotated[
        int | None,
        setting(
            "The oldest copies are removed while all of them take more than this.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=limits.JOURNAL_FILE_BYTES_MIN,
            default_text="none are too many",
        ),
    ] = None
    id_cache_size: Annotated[
        int,
        setting(
            "Duplicate ids (the header `_AMQ_DUPL_ID`) that each address remembers: a message "
            "whose id is among them is discarded. 0 switches detection off.",
            change=Change.RELOAD,
            minimum=0,
            maximum=limits.DUPLICATE_IDS_MAX,
        ),
    ] = 20_000
    persist_id_cache: Annotated[
        bool,
        setting(
            "Whether duplicate ids are kept in the message journal, so that a restart remembers "
            "them.",
            change=Change.RESTART,
        ),
    ] = True
    max_disk_usage: Annotated[
        int,
        setting(
            "Share of the disk above which producers wait. 100 never waits.",
            unit=Unit.PERCENT,
            change=Change.RESTART,
            minimum=1,
            maximum=100,
        ),
    ] = 90
    min_disk_free: Annotated[
        int,
        setting(
            "Free space below which producers wait; wins over `max-disk-usage`. -1 is off.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=0,
            special=-1,
        ),
    ] = -1
    disk_reserve_size: Annotated[
        int,
        setting(
            "Size of the file `disk-reserve` in the journal's folder. A start that finds the disk "
            "full gives it up, so that consumers can make room; producers wait until there is "
            "room for it again. -1 is `journal-file-size` and 4 MiB, on volumes of at least eight "
            "times that; 0 is none.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=0,
            maximum=limits.JOURNAL_FILE_BYTES_MAX,
            special=-1,
        ),
    ] = -1
    disk_scan_period: Annotated[
        int,
        setting(
            "Time between two looks at the free space.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=100,
            maximum=3_600_000,
        ),
    ] = 5000

    transaction_timeout: Annotated[
        int,
        setting(
            "Time after which a transaction that is neither ended nor prepared is rolled back. "
            "Prepared branches of distributed transactions wait without end.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=1000,
            maximum=604_800_000,
        ),
    ] = 300_000
    transaction_timeout_scan_period: Annotated[
        int,
        setting(
            "Time between two looks for transactions that take too long.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=100,
            maximum=3_600_000,
        ),
    ] = 1000

    def effective_journal_max_io(self, engine: JournalType) -> int:
        """Return the number of requests in flight for the engine that is really in use."""
        if self.journal_max_io is not None:
            return self.journal_max_io
        return 1 if engine is JournalType.NIO else 500

    def directories(self, base: Path | None = None) -> Directories:
        """Return the folders.

        Args:
            base: Replaces `data-directory` (the `--data` option); None uses the setting.
        """
        root = Path(base if base is not None else self.data_directory)

        def place(own: str | None, name: str) -> Path:
            return (root / (own or name)).absolute()

        bindings = place(self.bindings_directory, "bindings")
        return Directories(
            bindings,
            place(self.journal_directory, "journal"),
            place(self.paging_directory, "paging"),
            place(self.large_messages_directory, "large-messages"),
            place(self.jms_directory, "jms") if self.jms_directory else bindings,
        )


class Configuration(BrokerSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The whole of `broker.yaml`."""

    acceptors: Annotated[
        tuple[Acceptor, ...],
        setting(
            "Listening sockets.",
            change=Change.RESTART,
            key="name",
            min_items=1,
            max_length=32,
            default_text="`all` on 61616, `amqp` on 5672, `mqtt` on 1883 and `stomp` on 61613, "
            "all on loopback",
        ),
    ] = DEFAULT_ACCEPTORS
    admin: Annotated[Admin, setting("The HTTP listener.")] = Admin()
    security: Annotated[Security, setting("Users and logins.")] = Security()
    addresses: Annotated[
        tuple[Address, ...],
        setting(
            "Addresses that exist from the start.",
            change=Change.RELOAD,
            key="name",
            max_length=10_000,
        ),
    ] = ()
    address_settings: Annotated[
        dict[str, AddressSettings],
        setting(
            "Settings by match: a name, or a pattern with `*` for one word and `#` for any "
            "number of words between dots.",
            change=Change.RELOAD,
            max_length=1000,
        ),
    ] = msgspec.field(default_factory=dict)
    security_settings: Annotated[
        dict[str, SecuritySettings],
        setting(
            "Permissions by match, written as those of `address-settings`. The most specific one "
            "alone decides. Without any, whoever is logged in may do everything.",
            change=Change.RELOAD,
            max_length=1000,
        ),
    ] = msgspec.field(default_factory=dict)
