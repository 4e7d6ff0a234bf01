"""What lies at a path: a broker's data folder, one journal, pages, an export, kept copies.

Owns the names of folders and files. Nothing is opened but to see how a single file begins. Called
by `plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from vespiary_codec.journal.file_forms import FORMS, copy_parts, page_number
from vespiary_pipeline.files import unreadable
from vespiary_pipeline.options import Options
from vespiary_spec.errors import NativeError, StorageError

SNAPSHOT_PREFIX: Final = ".vespiary-snapshot-"
_FOLDERS: Final = {"message": "journal", "bindings": "bindings", "jms": "jms", "page": "paging"}
_TEXT_BEGIN: Final = b"#Vespiary journal"


class Place(NamedTuple):
    """Something that can be read.

    Attributes:
        kind: `journal`, `copies` (kept ones, of which some may be missing), `pages` or `text`.
        path: Its folder; of an export the file.
        journal: Kind of the journal; `message` for copies; empty if the file itself says it.
        bindings: Folder of the bindings journal; None: there is none.
        large_messages: Folders of large bodies; the first that has one counts.
    """

    kind: str
    path: Path
    journal: str
    bindings: Path | None = None
    large_messages: tuple[Path, ...] = ()


def find_places(options: Options) -> list[Place]:
    """Return what lies at the paths, in their order.

    Args:
        options: The paths, and which journals are wanted.

    Raises:
        StorageError: Nothing that can be read lies at a path.
        NativeError: A path can't be looked at.
    """
    places = []
    for text in options.paths:
        with _looked_at(text):
            found = _at(Path(text), options)
        if not found:
            raise StorageError(
                "nothing of a broker lies here",
                where=text,
                allowed="a broker's data folder, a folder of its journals, pages or kept copies,"
                " or a text that `vespiary export-journal` wrote",
                cure="name the folder that holds journal/ and bindings/, or the journal itself",
            )
        places += found
    return places


@contextmanager
def _looked_at(path: str) -> Iterator[None]:
    """Say in a sentence why a path can't be looked at."""
    try:
        yield
    except NativeError:
        raise
    except OSError as error:
        raise unreadable("the path can't be looked at", error, error.filename or path) from error


def _at(path: Path, options: Options) -> list[Place]:
    if path.is_file():
        return [_text(path, options)] if _begins_as_text(path) else []
    folders = {kind: path / name for kind, name in _FOLDERS.items()}
    found = []
    for kind, folder in folders.items():
        if not options.journals or kind in options.journals:
            found += _one_folder(_in_snapshot(folder, options), options, is_in_data=True)
    if "page" in options.journals and (path / _FOLDERS["message"]).is_dir():
        folder = _in_snapshot(folders["page"], options)
        if not any(place.kind == "pages" for place in found):  # a broker without pages
            found.append(Place("pages", folder, "page"))
    if found:
        # JMS objects may lie in the bindings' folder; pages are read only when they are asked for.
        wanted = options.journals or ("message", "bindings", "jms")
        return [place for place in found if place.journal in wanted]
    folder = _in_snapshot(path, options)
    if options.snapshot and path.is_dir() and not folder.is_dir():
        raise StorageError(
            "there is no snapshot of this name", where=str(path), measured=options.snapshot,
            cure="`vespiary journal snapshots` lists those that there are",
        )  # fmt: skip
    own = _one_folder(folder, options, is_in_data=False)
    return [place for place in own if not options.journals or place.journal in options.journals]


def _text(path: Path, options: Options) -> Place:
    """Return the place of an export; its large bodies lie in a folder of its name."""
    given = Path(options.large_messages) if options.large_messages else None
    own = path.with_name(f"{path.name}.large-messages")
    large = tuple(one for one in (given, own) if one is not None and one.is_dir())
    return Place("text", path, "", Path(options.bindings) if options.bindings else None, large)


def _in_snapshot(folder: Path, options: Options) -> Path:
    return folder / f"{SNAPSHOT_PREFIX}{options.snapshot}" / "files" if options.snapshot else folder


def _one_folder(folder: Path, options: Options, *, is_in_data: bool) -> list[Place]:
    names = _names(folder, is_needed=not is_in_data)
    if "files" in names and folder.name.startswith(SNAPSHOT_PREFIX):
        folder = folder / "files"
        names = _names(folder, is_needed=True)
    beside = _beside(folder, options)
    found = []
    for journal, form in FORMS.items():
        if any(form.number(name) is not None for name in names):
            found.append(Place("journal", folder, journal, *beside))
    if any(copy_parts(name) for name in names):
        found.append(Place("copies", folder, "message", *beside))
    if _has_pages(folder, names):
        found.append(Place("pages", folder, "page", *beside))
    return found


def _beside(folder: Path, options: Options) -> tuple[Path | None, tuple[Path, ...]]:
    """Return the folders of bindings and of large bodies that go with a folder of a broker."""

    def sibling(name: str) -> Path | None:
        if folder.name == "files" and folder.parent.name.startswith(SNAPSHOT_PREFIX):
            found = folder.parents[2] / name / folder.parent.name / "files"
        else:
            found = folder.parent / name
        return found if found.is_dir() else None

    bindings = Path(options.bindings) if options.bindings else sibling("bindings")
    large = Path(options.large_messages) if options.large_messages else sibling("large-messages")
    kept = folder / "large-messages"
    return bindings, tuple(one for one in (large, kept) if one is not None and one.is_dir())


def _has_pages(folder: Path, names: list[str]) -> bool:
    if any(page_number(name) is not None for name in names):
        return True
    inner = [folder / name for name in names if len(name) == 32 and (folder / name).is_dir()]
    return any(
        page_number(name) is not None for one in inner for name in _names(one, is_needed=False)
    )


def page_files(folder: Path) -> list[Path]:
    """Return the files of pages in a paging folder or in the folder of one address, by id.

    Raises:
        NativeError: A folder can't be read.
    """
    found = []
    for name in _names(folder, is_needed=False):  # a broker makes it with its first page
        inner = folder / name
        if page_number(name) is not None:
            found.append(inner)
        elif len(name) == 32 and inner.is_dir():
            own = _names(inner, is_needed=False)  # a broker may remove it at any time
            found += [inner / one for one in own if page_number(one) is not None]
    return sorted(found, key=lambda path: path.name)


def _names(folder: Path, *, is_needed: bool) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError) as error:
        if not is_needed:
            return []
        raise StorageError(
            "there is no such folder", where=str(folder),
            cure="look at the path, and at what is mounted",
        ) from error  # fmt: skip
    except OSError as error:
        raise unreadable("the folder can't be read", error, folder) from error


def _begins_as_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_TEXT_BEGIN)) == _TEXT_BEGIN
    except OSError as error:
        raise unreadable("the file can't be read", error, path) from error
