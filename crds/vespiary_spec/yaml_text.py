"""YAML as configuration files use it: strict reading, and writing that people can read.

Owns: the use of PyYAML for configurations. It is a module of its own so that it is imported when
there is YAML. Must never construct anything but plain values. Called by `configuration`.
"""

from __future__ import annotations

from typing import Any

import yaml

from vespiary_spec.errors import UnreadableConfig


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a name may stand only once; plain YAML takes the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated name; everything else as ever."""
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"`{key}` stands here twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse(text: str, *, source: str = "") -> Any:
    """Parse one YAML document.

    Args:
        text: The document.
        source: Name of the file, for error messages.

    Raises:
        UnreadableConfig: It is no YAML, or a name stands in it twice; with line and column. It
            nests without end, or too deeply to be read.
    """
    try:
        return yaml.load(text, _UniqueKeyLoader)  # noqa: S506 - derived from SafeLoader
    except RecursionError:
        raise UnreadableConfig("this nests too deeply to be read", path=source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source or 'configuration'}:{mark.line + 1}:{mark.column + 1}" if mark else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UnreadableConfig(f"this is no usable YAML: {problem}", path=where) from error


def dump(value: Any) -> str:
    """Write plain values as YAML, names in their order."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=96)
