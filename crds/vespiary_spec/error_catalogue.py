"""What each error means, and what to do about it: the text of `docs/reference/errors.md`.

Owns `CATALOGUE`. Must never miss a class of `errors` (a test compares the two). Called by `gen`.
"""

from __future__ import annotations

from typing import NamedTuple

from vespiary_spec.errors import (
    AddressFull,
    BadExport,
    BrokerRefused,
    ConfigError,
    CorruptRecord,
    DiskFull,
    EngineUnavailable,
    ExportRefused,
    ForeignJournal,
    ForeignVolume,
    GeneratedDrift,
    ImportRefused,
    InvalidSelector,
    JobFailed,
    JournalError,
    JournalFileOverdue,
    JournalFull,
    JournalLocked,
    LargeMessageDamaged,
    LimitExceeded,
    LocalProtocolError,
    LoginBusy,
    LoginRefused,
    MessagesLost,
    NativeError,
    NotOwner,
    NotPermitted,
    OwnershipLost,
    PageDamaged,
    PermanentReconcileError,
    PipelineError,
    ProtocolError,
    QuantityError,
    ReconcileError,
    RecordTooLarge,
    RegistrationRefused,
    RemoteProtocolError,
    SourceChanged,
    SparkUnusable,
    StorageError,
    StorageRefused,
    StreamFenced,
    StreamHeld,
    TemporaryReconcileError,
    TornTail,
    UnknownSetting,
    UnreadableConfig,
    UnsupportedSetting,
    UserRemoved,
    VespiaryError,
    WriterFailed,
    XaError,
)


class CatalogueEntry(NamedTuple):
    """One line of the errors reference."""

    error: type[VespiaryError]
    meaning: str
    cure: str


CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        VespiaryError, "Base of all others; never raised itself.", "Report it if you see it."
    ),
    CatalogueEntry(
        ConfigError,
        "A value of the configuration or of a resource is refused; the message leads with the "
        "path to the field, then the value and what is allowed.",
        "Correct the field. Nothing was changed or started.",
    ),
    CatalogueEntry(
        UnknownSetting,
        "Nobody knows a setting of this name; it is never ignored.",
        "Use the name that the message suggests, or look it up in the configuration reference.",
    ),
    CatalogueEntry(
        UnsupportedSetting,
        "The reference system knows this name or value, but this version of Vespiary cannot do "
        "what it asks for yet, so it is refused rather than ignored.",
        "Take the line out, or wait for the version that supports it.",
    ),
    CatalogueEntry(
        UnreadableConfig,
        "The configuration file cannot be read or parsed.",
        "Correct the file at the line and column that the message names.",
    ),
    CatalogueEntry(
        QuantityError,
        "A size such as `10MiB` or a duration such as `500ms` cannot be understood.",
        "Write a whole number with one of the suffixes that the message lists.",
    ),
    CatalogueEntry(
        GeneratedDrift,
        "A generated file differs from the model that it comes from.",
        "Run `make gen` and commit the result.",
    ),
    CatalogueEntry(ProtocolError, "Base of the protocol errors.", "See the specific code."),
    CatalogueEntry(
        LocalProtocolError,
        "The broker itself asked for something that the protocol does not allow: a defect.",
        "Report it with the message.",
    ),
    CatalogueEntry(
        RemoteProtocolError,
        "The client sent something that the protocol does not allow. It got an answer with the "
        "reason and was disconnected; other clients are not affected.",
        "Correct the client.",
    ),
    CatalogueEntry(
        LimitExceeded,
        "The client exceeded a limit of its acceptor (headers, frame, read rate, connections).",
        "Send less, or raise the acceptor's limit that the message names.",
    ),
    CatalogueEntry(
        AddressFull,
        "The address of a message, or all addresses together, hold as much as they may, and its "
        "`address-full-policy` is FAIL.",
        "Send again when messages were consumed, or raise `max-size-bytes`, `max-size-messages` or "
        "`global-max-size`.",
    ),
    CatalogueEntry(
        LoginRefused,
        "User name or password are wrong, or a login is required.",
        "Log in with a user of the users file (`vespiary user add`).",
    ),
    CatalogueEntry(
        LoginBusy,
        "A password was not checked, since too many other logins wait for their check, or "
        "because the broker is shutting down. It says nothing about the password.",
        "Try again after a moment.",
    ),
    CatalogueEntry(
        UserRemoved,
        "The user of a connection was removed from the users file, so its connections were closed; "
        "or a broker that had no users has some now, and the client had come in without a login.",
        "Log in as another user, or add the user again (`vespiary user add`).",
    ),
    CatalogueEntry(
        NotPermitted,
        "`security-settings` do not let this user do this at this address. The most specific match "
        "alone decides; the message names it. A subscription with wildcards needs the permission "
        "of every match that may decide about an address that it covers.",
        "Give the user a role that the match names for the permission, or name one of its roles "
        "there; see [permissions](../howto/permissions.md).",
    ),
    CatalogueEntry(
        NotOwner,
        "The queue is that of a durable subscription or of an MQTT session, and another user made "
        "it: a client id does not make it yours.",
        "Log in as its user or as an administrator, or take another client id; see "
        "[permissions](../howto/permissions.md).",
    ),
    CatalogueEntry(
        XaError,
        "A call on a branch of a distributed transaction is not possible; the sentence begins with "
        "the code of the XA standard: XAER_NOTA (no such branch), XAER_DUPID (it exists already), "
        "XAER_PROTO (not in this state), XA_RBROLLBACK and XA_RBTIMEOUT (it was rolled back), "
        "XA_HEURCOM, XA_HEURRB and XA_HEURMIX (an administrator decided), XAER_RMERR (in "
        "quarantine).",
        "`vespiary transaction list` shows the branches and their states.",
    ),
    CatalogueEntry(
        StreamHeld,
        "A stream is another owner's, and its lease has not run out; or a consumer, a second "
        "stream or a deletion wants the queue that a stream reads.",
        "The sentence names the stream, its owner, and how long its lease runs. Wait until it has "
        "run out, take another queue, or delete the stream with `vespiary stream delete`.",
    ),
    CatalogueEntry(
        StreamFenced,
        "A call on a stream names an epoch that is not the latest: another run has claimed the "
        "stream, or it was deleted.",
        "End the older reader; one of two drivers on the same checkpoint is too many.",
    ),
    CatalogueEntry(
        InvalidSelector,
        "A selector (of a subscription, or the filter of a queue or a divert) is no condition. The "
        "message names the character and what was expected there; a STOMP client finds the place "
        "with a caret below it in the body of the ERROR frame.",
        "Correct the selector; docs/howto/selectors.md has the language.",
    ),
    CatalogueEntry(JournalError, "Base of the journal errors.", "See the specific code."),
    CatalogueEntry(
        JournalFull,
        "No journal file is free and none may be reclaimed. Nothing was written, nothing was "
        "confirmed.",
        "Consume messages, or give the journal volume more space.",
    ),
    CatalogueEntry(
        WriterFailed,
        "A write or a flush failed. The journal takes no more writes in this process and "
        "confirms nothing; what was confirmed before is safe.",
        "Look at the disk and the kernel log, then restart the broker.",
    ),
    CatalogueEntry(
        OwnershipLost,
        "Another broker took the journal over while this one was paused, cut off or given up. "
        "This one confirms nothing more and ends with exit code 3; what it confirmed is in the "
        "journal that the other one read.",
        "Let the other broker work. Start this one again only when that one has stopped.",
    ),
    CatalogueEntry(
        TornTail,
        "The end of the journal was cut off by a crash, above the last confirmed position. "
        "Expected after a crash; only unconfirmed work is affected.",
        "Nothing to do.",
    ),
    CatalogueEntry(
        CorruptRecord,
        "A block at or below the confirmed position does not match its checksum. The broker "
        "stops, names file and offset, and cuts nothing off.",
        "Keep a copy of the folder, run `vespiary journal verify`, then restore the volume.",
    ),
    CatalogueEntry(
        JournalLocked,
        "Another running broker owns the journal folder.",
        "Stop the other broker, or give this one its own folder.",
    ),
    CatalogueEntry(
        RecordTooLarge,
        "One message does not fit into `journal-buffer-size`.",
        "Send smaller messages, or raise `journal-buffer-size`.",
    ),
    CatalogueEntry(
        ForeignJournal,
        "A file in the folder has another format: the reference system's, a newer Vespiary's, "
        "or none.",
        "Give the broker its own folder, or the version that wrote the files.",
    ),
    CatalogueEntry(
        BadExport,
        "The text that `vespiary export-journal` wrote is damaged, cut off or of another version; "
        "the message names the line. Nothing was made that a broker would take for a journal.",
        "Copy or export the text again, then import it with `--resume`.",
    ),
    CatalogueEntry(
        JournalFileOverdue,
        "The journal has had no file to write to for longer than `journal-file-open-timeout`. "
        "Producers wait; the broker goes on by itself when the file comes.",
        "Look at the disk and the kernel log: making or opening a file hangs.",
    ),
    CatalogueEntry(
        NativeError,
        "A system call failed; the errno is kept and named.",
        "Act on the system's reason in the message.",
    ),
    CatalogueEntry(
        EngineUnavailable,
        "The journal engine asked for cannot work on this machine and `journal-type-strict` "
        "forbids another.",
        "Raise `fs.aio-max-nr` or lower `journal-max-io`; or allow the fallback.",
    ),
    CatalogueEntry(StorageError, "Base of the storage errors.", "See the specific code."),
    CatalogueEntry(
        StorageRefused,
        "A volume lies on a filesystem that the policy does not allow, NFS first. The broker "
        "did not start and the store was not touched.",
        "Give the volume that the message names an ext4 or xfs disk.",
    ),
    CatalogueEntry(
        DiskFull,
        "The disk is fuller than `max-disk-usage` or `min-disk-free` allow. Producers wait; "
        "consumers go on.",
        "Consume messages or enlarge the volume.",
    ),
    CatalogueEntry(
        ForeignVolume,
        "The volumes of this broker do not belong together: one was replaced by a blank or a "
        "strange one. The broker did not start.",
        "Attach the right volume, or restore all of them from one point in time.",
    ),
    CatalogueEntry(
        LargeMessageDamaged,
        "The file with the body of a large message is missing, or of another size or checksum. The "
        "message is kept in its queue and not delivered; all others are.",
        "Put the file back from a backup and restart the broker; or purge the queue.",
    ),
    CatalogueEntry(
        PageDamaged,
        "A file with messages of an address that pages is missing, cut off, or fails its checksum. "
        "At the start the broker refuses to go on; while it runs, the queue waits there and all "
        "others go on.",
        "Keep a copy of the paging folder and the journal, then restore the file from a backup of "
        "the same moment.",
    ),
    CatalogueEntry(ReconcileError, "Base of the operator's errors.", "See the specific code."),
    CatalogueEntry(
        TemporaryReconcileError,
        "A reconcile pass was cut short by something that may pass, and is repeated.",
        "Usually nothing; the condition's message says what it waits for.",
    ),
    CatalogueEntry(
        PermanentReconcileError,
        "The resource asks for something that cannot be done; the operator waits for a change.",
        "Change the resource as the condition's message says.",
    ),
    CatalogueEntry(PipelineError, "Base of the errors of the pipeline.", "See the specific code."),
    CatalogueEntry(
        SparkUnusable,
        "There is no PySpark or no Java, or not of a version that the pipeline can use; or Spark "
        "does not start.",
        "Install PySpark 4.2 or newer, before 5, and Java 17 or newer; set JAVA_HOME to it.",
    ),
    CatalogueEntry(
        ExportRefused,
        "The folder that an export should go to is in use by another export, holds something else, "
        "or exports of another kind. Nothing in it was changed.",
        "Do as the message says; an empty folder always works.",
    ),
    CatalogueEntry(
        JobFailed,
        "Spark ended a job for a reason of its own, such as a full disk or too little memory. What "
        "was exported before is untouched.",
        "Act on the reason in the message, then repeat the job.",
    ),
    CatalogueEntry(
        SourceChanged,
        "A file of a journal was freed and used again by its broker while Spark read it. What was "
        "read of it may be cut off.",
        "Read a copy that `vespiary journal snapshot` took, or say `consistency=best-effort`.",
    ),
    CatalogueEntry(
        MessagesLost,
        "Messages that a streaming query has not read are gone: expired, removed, or acknowledged "
        "by a later state of its checkpoint.",
        "Read the dead letters; `failOnDataLoss=false` goes on without them.",
    ),
    CatalogueEntry(
        BrokerRefused,
        "The broker refused a call of the pipeline, or a message of it, for the reason that is "
        "told: a queue that is not there or has consumers, an address that is full, a login that "
        "is wrong.",
        "Act on the reason, then start the query again; its checkpoint goes on where it was.",
    ),
    CatalogueEntry(
        ImportRefused,
        "The folder that an import should make holds something, another import into it took this "
        "one's place, or a row cannot be a message. Nothing is to be seen of the import.",
        "Give an empty or a new folder, mend the row that is named, and run one import at a time.",
    ),
    CatalogueEntry(
        RegistrationRefused,
        "A Delta or Iceberg table cannot take the exports of a folder: its library is missing, its "
        "catalogue cannot be reached, it is another folder's or somebody else's, or the columns "
        "differ. The exports are as they were; those that the table has are in it whole.",
        "Do as the message says, then register again: what the table lacks is added.",
    ),
)
"""Every error class once, in the order of the reference page."""
