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
    "host_budget",
    "disk_budget",
    "store_codec",
    "control_port",
    "control_host",
)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Settings:
    """The checked settings of one engine. Immutable; sizes are in bytes."""

    data_dir: Path
    secret: bytes
    host_budget: int
    disk_budget: int
    store_codec: str
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
    codec = extra.get("store_codec", "f16")
    if codec not in ("f16", "bf16", "f32"):
        raise ValueError(
            f"kv_connector_extra_config.store_codec: {codec!r} is none of 'f16', 'bf16' and 'f32'"
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
        host_budget=parse_size("host_budget", extra.get("host_budget", "1GiB")),
        disk_budget=parse_size("disk_budget", extra.get("disk_budget", "8GiB")),
        store_codec=codec,
        control_host=host,
        control_port=port,
    )


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
