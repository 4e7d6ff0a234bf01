"""The cffi recipe of `vespiary_native._native` (API mode, abi3).

The declarations are not repeated here: every header in `native/src` marks the part that Python may
call with `/* cdef-begin */` and `/* cdef-end */`, so the contract and the binding cannot drift.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "src"
# Declaration order matters to cffi: a type stands in an earlier header than its users.
HEADERS = [
    name
    for name in (
        "abi.h",
        "crc32c.h",
        "aio.h",
        "uring.h",
        "image.h",
        "queue.h",
        "core.h",
        "stomp.h",
        "recovery.h",
        "page_sketch.h",
        "page_arrange.h",
        "like.h",
        "columns.h",
    )
    if (SOURCES / name).exists()
]
_MARKED = re.compile(r"/\* cdef-begin \*/(.*?)/\* cdef-end \*/", re.DOTALL)


def declarations() -> str:
    """Return the marked regions of all headers, in order.

    Raises:
        ValueError: A header has a marked region and no place in HEADERS.
    """
    marked = {path.name for path in SOURCES.glob("*.h") if _MARKED.search(path.read_text())}
    if missing := sorted(marked - set(HEADERS)):
        raise ValueError(f"{', '.join(missing)}: marked for cdef, but not in HEADERS of {__file__}")
    return "\n".join(
        region for name in HEADERS for region in _MARKED.findall((SOURCES / name).read_text())
    )


ffi = FFI()
ffi.cdef(declarations())
ffi.set_source(
    "vespiary_native._native",
    "\n".join(f'#include "{name}"' for name in HEADERS),
    # Relative paths: setuptools wants them, and builds start at the repository root.
    sources=[os.path.relpath(path, ROOT.parent) for path in sorted(SOURCES.glob("*.c"))],
    include_dirs=[str(SOURCES)],
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-g",
        "-fstack-protector-strong",
        # Some interpreters bring their own level, and -DNDEBUG with it: assert() is kept.
        "-U_FORTIFY_SOURCE",
        "-D_FORTIFY_SOURCE=3",
        "-UNDEBUG",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-D_GNU_SOURCE",
        "-Wno-unused-parameter",
    ],
    extra_link_args=["-Wl,-z,relro,-z,now"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffi.compile(tmpdir=str(ROOT), verbose=True)
