"""What leaves a support bundle's texts before they are written. Pure.

Owns: the list of what counts as a secret. Whatever is found is replaced by `REDACTED`: values of
fields, variables, options and settings with a telling name, credentials in URLs and headers,
private keys, hashed passwords, and the annotation in which `kubectl apply` keeps a whole object.
Never: shortens anything else. Called by: `bundle`.
"""

from __future__ import annotations

import re
from typing import Any

REDACTED = "REDACTED"

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_TELLING = (
    r"(?:pass(?:word|wd|code|phrase)?|pwd|secret|token|credentials?|api[-_]?key"
    r"|private[-_]?key|access[-_]?key|auth(?:orization)?)"
)
_TELLING_NAME = re.compile(rf"(?i)(?:^|[-_.\s]|(?<=[a-z])){_TELLING}s?$")

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
        ),
        REDACTED,
    ),
    (re.compile(r"(?i)\b(basic|bearer)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {REDACTED}"),
    (re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s:@\"']*:[^/\s@\"']+@"), rf"\1{REDACTED}@"),
    (re.compile(r"SCRAM-SHA-[0-9]+\$[^\s\"']+"), REDACTED),
    (
        # key: value, key=value, "key": "value"; a word of logic is no secret
        re.compile(
            rf"(?i)((?:--)?[A-Za-z0-9_.-]*{_TELLING}[\"']?\s*[:=]\s*)"
            r"(?![\[{&*|>]|true\b|false\b|null\b)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;}\]]+)"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(rf"(?i)(--[a-z0-9-]*{_TELLING})[ =]+(?!-)[^\s,\"']+"), rf"\1 {REDACTED}"),
)


def text(value: str) -> str:
    """Return a text without the secrets in it."""
    for pattern, put in _PATTERNS:
        value = pattern.sub(put, value)
    return value


def document(value: Any) -> Any:
    """Return a document without the secrets in it.

    Args:
        value: An object of the API server, or a part of one.
    """
    if isinstance(value, dict):
        return _fields(value)
    if isinstance(value, list):
        return _list(value)
    return text(value) if isinstance(value, str) else value


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("kind") == "Secret" or value.keys() & {"stringData"}:
        value = {k: v for k, v in value.items() if k not in ("data", "stringData")}
    found = {}
    for name, part in value.items():
        if name in (LAST_APPLIED, "managedFields"):
            continue
        if isinstance(part, str) and _TELLING_NAME.search(name) and part not in ("true", "false"):
            found[name] = REDACTED
        else:
            found[name] = document(part)
    telling = isinstance(value.get("name"), str) and _TELLING_NAME.search(value["name"])
    if telling and isinstance(value.get("value"), str):
        found["value"] = REDACTED  # a variable of a container
    return found


def _list(value: list[Any]) -> list[Any]:
    found = []
    hides_next = False
    for part in value:
        is_option = isinstance(part, str) and part.startswith("--") and "=" not in part
        if hides_next and isinstance(part, str) and not part.startswith("--"):
            found.append(REDACTED)
        else:
            found.append(document(part))
        hides_next = is_option and bool(_TELLING_NAME.search(str(part)))
    return found
