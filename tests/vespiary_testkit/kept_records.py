"""An owner of records in the message journal, for tests of the store: one record for each name."""

from __future__ import annotations

from vespiary_native.abc import Core, NoRoom

TYPE = 100


class NamedRecords:
    """Names, each in one live record of a type that the core does not know.

    Attributes:
        core: Set it when the journal is open.
        restored: The names that a recovery found, in order.
    """

    def __init__(self) -> None:
        self.core: Core | None = None
        self.restored: list[bytes] = []
        self._files: dict[bytes, int] = {}

    def add(self, name: bytes) -> None:
        """Append the record of a name; an older one of it is dead from now on."""
        assert self.core is not None
        self.core.append_record(TYPE, name, urgent=False)
        self._files[name] = self.core.current_file()

    def restore(self, file_id: int, type_: int, body: bytes) -> None:
        if type_ == TYPE:
            self.restored.append(body)
            self._files[body] = file_id

    def live_records(self, file_id: int) -> int:
        return list(self._files.values()).count(file_id)

    def live_bytes(self, file_id: int) -> int:
        return sum(len(name) + 8 for name, file in self._files.items() if file == file_id)

    def rewrite(self, file_id: int, limit_bytes: int) -> bool:
        for name in [name for name, file in self._files.items() if file == file_id]:
            if limit_bytes <= 0:
                return False
            try:
                self.add(name)
            except NoRoom:
                return False
            limit_bytes -= len(name) + 8
        return True

    def forget_file(self, file_id: int) -> None:
        assert not self.live_records(file_id)
