"""Builds and runs `stompload` and `protocolload`, and gives their report a type.

Owns: the compiler call and the generator's process. Must never: parse anything but the one JSON
object that a generator prints. Called by `benchmarks.measurement` and by tests.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

_FOLDER = Path(__file__).parent
BINARY = _FOLDER / "bin" / "stompload"
PROTOCOL_BINARY = BINARY.with_name("protocolload")
_PARTS = {
    "stompload": ("stompload.c", "load/measuring.c", "load/stomp_frames.c"),
    "protocolload": ("protocolload.c", "load/*.c"),
}
_WARNINGS = ("all", "extra", "conversion", "shadow", "strict-prototypes", "vla", "error")
_C_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", *(f"-W{name}" for name in _WARNINGS))


class GeneratorError(Exception):
    """The generator could not be built, or ended without a report."""


class Arguments(msgspec.Struct, frozen=True):
    """A load that is told as command line options."""

    def arguments(self) -> list[str]:
        """Return the command line options of this load."""
        pairs = msgspec.to_builtins(self)
        return [part for k, v in pairs.items() for part in (f"--{k.replace('_', '-')}", f"{v}")]


class Load(Arguments, frozen=True, kw_only=True):
    """What to send and receive; the fields are stompload's options of the same name.

    Invariants: `seconds` and `messages` both bound the run; `rate` 0 means the closed loop.
    """

    producers: int = 1
    consumers: int = 0
    queues: int = 1
    destination_type: str = "ANYCAST"
    window: int = 1
    rate: float = 0
    body_size: int = 1024
    ack: str = "client-individual"
    send_header: str = ""
    variants: int = 1
    selector: str = ""
    prefetch: int = 0
    warmup: float = 1.0
    seconds: float = 4.0
    messages: int = 20_000_000
    drain_seconds: float = 10.0


class ProtocolLoad(Arguments, frozen=True, kw_only=True):
    """As `Load`, for protocolload: in a closed loop; as many consumers as queues, or none.

    Protocols are `stomp`, `mqtt` (3.1.1, QoS 1), `mqtt5` and `amqp`. Every message is journalled:
    what MQTT publishes is for a queue or a persistent session, which has gone without consumers.
    """

    producer_protocol: str
    consumer_protocol: str
    producers: int = 1
    consumers: int = 0
    queues: int = 1
    window: int = 1
    body_size: int = 1024
    warmup: float = 1.0
    seconds: float = 4.0
    messages: int = 20_000_000
    drain_seconds: float = 10.0


class Latency(msgspec.Struct, frozen=True):
    """A latency distribution in microseconds, to three digits."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Counts(msgspec.Struct, frozen=True):
    """Messages, each counted once."""

    sent: int
    confirmed: int
    delivered: int
    acknowledged: int


class Checks(msgspec.Struct, frozen=True):
    """What the generator's ledger found; all but the last five spoil a run when above zero.

    `lost` is confirmed but never received; `confirmed_not_seen` is the same without a consumer that
    could have received it; `foreign` are left-overs of an earlier run; `in_doubt` were received
    while their acknowledgement was not confirmed, so either end is legal.
    """

    lost: int
    duplicates: int
    misrouted: int
    corrupt: int
    receipt_errors: int
    unconfirmed: int
    resurrected: int
    out_of_order: int
    foreign: int
    confirmed_not_seen: int
    in_doubt: int
    order_checked: bool


class GeneratorCpu(msgspec.Struct, frozen=True):
    """What the generator itself cost."""

    user_us_per_message: float
    system_us_per_message: float
    cores: float


class LoadReport(msgspec.Struct, frozen=True):
    """The object that a generator prints (window = without the warm-up and the drain)."""

    passed: bool
    ended: str
    reason: str
    settings: dict[str, str | int | float | bool]
    seconds: float
    confirmed_per_s: float
    delivered_per_s: float
    window: Counts
    totals: Counts
    confirm_latency_us: Latency
    end_to_end_latency_us: Latency
    checks: Checks
    generator: GeneratorCpu
    per_second: list[tuple[int, int]]


def has_tls() -> bool:
    """Return whether generators are built with TLS: whether OpenSSL's header files are there."""
    compiler = os.environ.get("CC", "cc")
    try:
        done = subprocess.run(
            [compiler, "-E", "-x", "c", "-"],
            input=b"#include <openssl/ssl.h>\n",
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return False  # `build` says so
    return done.returncode == 0


def build(binary: Path = BINARY, extra_flags: Sequence[str] = ()) -> Path:
    """Compile a generator unless `binary` is newer than its sources; returns `binary`.

    Args:
        binary: Where it is to be; its name is that of the generator.
        extra_flags: For the compiler.

    Raises:
        GeneratorError: The compiler (`$CC`, else cc) is missing or refused the sources.
    """
    sources = [path for part in _PARTS[binary.name] for path in sorted(_FOLDER.glob(part))]
    newest = max(p.stat().st_mtime_ns for p in [*sources, *_FOLDER.glob("load/*.h")])
    if binary.exists() and binary.stat().st_mtime_ns > newest:
        return binary
    binary.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    libraries = ["-lssl", "-lcrypto"] if binary.name == "protocolload" and has_tls() else []
    command = [compiler, *_C_FLAGS, *extra_flags, *map(str, sources), *libraries]
    made = binary.with_name(f"{binary.name}.{os.getpid()}")  # another process may build it too
    command += ["-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise GeneratorError(
            f"building {binary.name} needs a C compiler: '{compiler}' was not found; "
            "on Debian: apt-get install gcc libc6-dev"
        ) from error
    if done.returncode != 0:
        raise GeneratorError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    made.replace(binary)
    return binary


def run_load(
    binary: Path,
    port: int,
    load: Load | ProtocolLoad,
    *,
    on_measuring: Callable[[], None] = lambda: None,
    on_measured: Callable[[], None] = lambda: None,
    extra_arguments: Sequence[str] = (),
) -> LoadReport:
    """Run one load against the broker on a loopback port and return the report.

    Args:
        binary: What `build` returned.
        port: A port of 127.0.0.1 that speaks the generator's protocol.
        load: What to send and receive.
        on_measuring: Called as the measured window opens (within a few milliseconds).
        on_measured: Called as it closes, before the drain.
        extra_arguments: Further options, such as `--login`.

    Raises:
        GeneratorError: It ended without a report: wrong options, or no connection.
    """
    command = [str(binary), "--port", str(port), *load.arguments(), *extra_arguments]
    complaints: list[str] = []
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.endswith(": measuring\n"):
                    on_measuring()
                elif line.endswith(": measured\n"):
                    on_measured()
                else:
                    complaints.append(line)
        output.seek(0)
        text = output.read()
    if not text:
        raise GeneratorError(
            f"{' '.join(command)} ended with {process.returncode}: {''.join(complaints).strip()}"
        )
    return msgspec.json.decode(text, type=LoadReport)
