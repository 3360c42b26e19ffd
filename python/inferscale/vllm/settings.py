"""What ``kv_connector_extra_config`` may say, and the installation secret."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECRET_BYTES = 32

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_KEYS = (
    "data_dir",
    "secret_file",
    "gpu_budget",
    "pinned_budget",
    "host_budget",
    "disk_budget",
    "verify_rate",
    "store_codec",
    "control_port",
    "control_host",
)
CODECS = ("f16", "bf16", "f32", "q8", "fp8_e4m3", "q4")  # of records
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Settings:
    """The checked settings of one engine. Immutable; sizes are in bytes. The budgets of the GPU and of
    pinned memory may be fractions (float) of what is free when the caches are there."""

    data_dir: Path
    secret: bytes
    gpu_budget: int | float
    pinned_budget: int | float
    host_budget: int
    disk_budget: int
    verify_rate: int  # bytes a second; 0: only what is asked for
    store_codec: str  # "auto": by the type of the cache
    control_host: str
    control_port: int


def load_settings(extra: Mapping[str, Any]) -> Settings:
    """Checks ``kv_connector_extra_config`` and reads, or makes, the installation secret.

    Raises ValueError that names the key and what it accepts, OSError when a file cannot be used.
    Several processes may call it at once.
    """
    unknown = sorted(set(extra) - set(_KEYS))
    if unknown:
        raise ValueError(
            f"kv_connector_extra_config: unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}"
        )
    codec = extra.get("store_codec", "auto")
    if codec not in ("auto", *CODECS):
        raise ValueError(
            f"kv_connector_extra_config.store_codec: {codec!r} is none of 'auto', "
            + ", ".join(map(repr, CODECS))
        )
    port = extra.get("control_port", 0)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise ValueError("kv_connector_extra_config.control_port: must be a number from 0 to 65535")
    host = extra.get("control_host", "127.0.0.1")
    if host not in _LOOPBACK:
        raise ValueError(
            f"kv_connector_extra_config.control_host: the control channel is not encrypted and only "
            f"listens on this machine ({', '.join(_LOOPBACK)})"
        )
    data_dir = Path(_text(extra, "data_dir") or _default_data_dir()).expanduser().resolve()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Settings(
        data_dir=data_dir,
        secret=_read_secret(_secret_path(_text(extra, "secret_file"), data_dir)),
        gpu_budget=parse_budget("gpu_budget", extra.get("gpu_budget", "1GiB")),
        pinned_budget=parse_budget("pinned_budget", extra.get("pinned_budget", "4GiB")),
        host_budget=parse_size("host_budget", extra.get("host_budget", "1GiB")),
        disk_budget=parse_size("disk_budget", extra.get("disk_budget", "8GiB")),
        verify_rate=parse_size("verify_rate", extra.get("verify_rate", "256MiB")),
        store_codec=codec,
        control_host=host,
        control_port=port,
    )


def parse_budget(key: str, value: Any) -> int | float:
    """A size, or a fraction above 0 and below 1 (float). Raises ValueError that names ``key``."""
    if isinstance(value, float):
        if 0.0 < value < 1.0:
            return value
        raise ValueError(
            f"kv_connector_extra_config.{key}: {value!r} is no fraction; give a number between 0 and 1, "
            f"or a size"
        )
    return parse_size(key, value)


def budget_bytes(budget: int | float, free: int) -> int:
    """``budget`` in bytes, where ``free`` bytes are free."""
    return int(budget * free) if isinstance(budget, float) else budget


def free_host_memory() -> int:
    """Bytes that can be had without swapping."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parse_size(key: str, value: Any) -> int:
    """``"512MiB"`` or a number, in bytes. Raises ValueError that names ``key``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        match = re.fullmatch(r"(\d{1,15})\s*([KMGT]iB|B|)", value)
        if match:
            return int(match.group(1)) * _UNITS[match.group(2)]
    raise ValueError(
        f"kv_connector_extra_config.{key}: {value!r} is no size; give bytes, or a number with KiB, "
        f"MiB, GiB or TiB"
    )


def _text(extra: Mapping[str, Any], key: str) -> str:
    value = extra.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"kv_connector_extra_config.{key}: must be a path")
    return value


def _default_data_dir() -> str:
    home = os.environ.get("INFERSCALE_HOME")
    if home:
        return os.path.join(home, "vllm")
    base = os.environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    return os.path.join(base, "inferscale", "vllm")


def _secret_path(given: str, data_dir: Path) -> Path:
    """The given file; else that of the data directory around ours; else one of our own."""
    if given:
        return Path(given).expanduser()
    shared = data_dir.parent / "secret"
    return shared if shared.is_file() else data_dir / "secret"


def _read_secret(path: Path) -> bytes:
    if not path.exists():
        _make_secret(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError(f"secret file {path}: other users may read it; run: chmod 600 {path}")
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"secret file {path}: has {len(secret)} bytes, not {SECRET_BYTES}")
    return secret


def _make_secret(path: Path) -> None:
    """Several processes may race: the first to link its file wins, the others use that one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="secret.tmp-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
    finally:
        os.unlink(temporary)
