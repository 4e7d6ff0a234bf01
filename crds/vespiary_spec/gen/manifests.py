"""`make manifests`: the chart as one file for `kubectl apply`, for those who have no Helm.

Owns: what is taken out of the chart's text: what only Helm understands.
Never: is imported by anything; needs `helm` on PATH. Called by: `make manifests`, tests.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NAMESPACE = "vespiary-system"

_HEADER = """# Vespiary's operator with its definitions, rights and admission policies, for
#   kubectl apply --server-side -f install.yaml
# Made by `make manifests` from charts/vespiary; the chart has every switch.
"""

_OWN_NAMESPACE = f"""apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""

_HELM_ONLY = re.compile(
    r"^ *(?:# Source: .*|helm\.sh/(?:chart|resource-policy): .*"
    r"|app\.kubernetes\.io/managed-by: Helm)\n",
    re.MULTILINE,
)
_EMPTY_ANNOTATIONS = re.compile(r"^( *)annotations:\n((?:\1 +#.*\n)*)(?!\1 +\S)", re.MULTILINE)


def install_text(chart: Path, settings: Sequence[str] = ()) -> str:
    """Return the file.

    Args:
        chart: Folder of the chart.
        settings: Values, each as `helm --set` takes it.

    Raises:
        subprocess.CalledProcessError: Helm found the chart or a value wrong.
        FileNotFoundError: There is no helm.
    """
    chosen = [part for setting in settings for part in ("--set", setting)]
    helm = shutil.which("helm")
    if helm is None:
        raise FileNotFoundError("helm")
    done = subprocess.run(  # noqa: S603 - the user's own helm
        [helm, "template", "vespiary", str(chart), "--namespace", NAMESPACE, "--no-hooks", *chosen],
        capture_output=True,
        text=True,
        check=True,
    )
    text = _EMPTY_ANNOTATIONS.sub("", _HELM_ONLY.sub("", done.stdout))
    parts = [part.strip("\n") for part in re.split(r"^---$", text, flags=re.MULTILINE)]
    documents = [part for part in parts if re.search(r"^kind:", part, re.MULTILINE)]
    return _HEADER + "".join(
        f"---\n{document.rstrip()}\n" for document in [_OWN_NAMESPACE, *documents]
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the file; return the exit code: 0 good, 1 failed, 2 usage."""
    parser = argparse.ArgumentParser(prog="vespiary_spec.gen.manifests", description=__doc__)
    parser.add_argument("target", type=Path, help="file to write")
    parser.add_argument("--chart", type=Path, default=Path("charts/vespiary"))
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    try:
        text = install_text(options.chart, options.settings)
    except FileNotFoundError:
        print("helm is not on PATH; the chart is rendered with it", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"helm failed: {error.stderr.strip()}", file=sys.stderr)
        return 1
    options.target.parent.mkdir(parents=True, exist_ok=True)
    options.target.write_text(text, encoding="utf-8")
    print(f"{options.target}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
