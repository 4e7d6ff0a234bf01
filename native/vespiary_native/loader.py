"""The one place that imports the C extension `vespiary_native._native`.

Owns: the decision whether the native part is used, and the check that it fits this Python code.
Never: falls back on its own; an extension that should be there and is not is an error with a cure.
Called by: the native façades of this package. Nothing else touches `_native`.

`VESPIARY_NATIVE=0` switches the native part off: the extension is then never imported. Unset or `1`
means that it is required. `ffi` and `lib` are made at their first use:

    from vespiary_native.loader import ffi, lib
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from vespiary_spec.errors import ConfigError, NativeError

ABI = 20  # VESPIARY_ABI of native/src/abi.h: raise both together

SWITCH = "VESPIARY_NATIVE"
_EXTENSION = "vespiary_native._native"

ffi: Any
lib: Any


def is_native() -> bool:
    """Tell whether the native part is used, and load it if so.

    Returns:
        False if `VESPIARY_NATIVE=0`, else True.

    Raises:
        NativeError: The extension is required, and not built, does not load, or of another ABI.
        ConfigError: `VESPIARY_NATIVE` is neither 0 nor 1.
    """
    if not is_wanted():
        return False
    load()
    return True


def is_wanted() -> bool:
    """Tell whether `VESPIARY_NATIVE` lets the native part be used; loads nothing.

    Raises:
        ConfigError: `VESPIARY_NATIVE` is neither 0 nor 1.
    """
    value = os.environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise ConfigError(
            "the switch of the native part has an unknown value",
            path=f"environment variable {SWITCH}",
            value=value,
            allowed="0 (pure Python) or 1 (native, the default)",
        )
    return value != "0"


def load() -> None:
    """Import the extension, compare its ABI, and set `ffi` and `lib`. Later calls do nothing.

    Raises:
        NativeError: It is switched off, not built, does not load, or is of another ABI.
    """
    if "lib" in globals():
        return
    if not is_wanted():
        raise NativeError(
            f"the native part is switched off by {SWITCH}=0", cure=f"unset {SWITCH} to use it"
        )
    try:
        extension: Any = importlib.import_module(_EXTENSION)
    except ModuleNotFoundError as error:
        if error.name != _EXTENSION:
            raise
        raise NativeError(
            "the native part is not built",
            cure=f"run `make native`, or set {SWITCH}=0 for the slower pure-Python parts",
        ) from error
    except ImportError as error:
        raise NativeError(
            f"the native part does not load ({error})", cure="build it again: `make native`"
        ) from error
    built = extension.lib.vespiary_abi()
    if built != ABI:
        raise NativeError(
            f"the native part was built for ABI {built}, this version needs {ABI}",
            where=str(extension.__file__),
            cure="build it again: `make native`",
        )
    globals()["ffi"] = extension.ffi
    globals()["lib"] = extension.lib


def __getattr__(name: str) -> Any:
    """Load the extension when `ffi` or `lib` is first asked for (PEP 562)."""
    if name in ("ffi", "lib"):
        load()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
