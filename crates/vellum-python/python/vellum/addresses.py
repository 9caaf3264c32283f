"""Where volumes are, and what opens them: directories, addresses of stores, secrets.

Addresses hold no secrets; the native part refuses one that seems to. What is pickled is a VolumeOrigin: each process finds the
secret by itself, in its arguments or its environment.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, NamedTuple, Optional, Tuple, Union

from .errors import Usage

if TYPE_CHECKING:
    from .trees import Snapshot
    from .volumes import Volume

PASSPHRASE_VARIABLE = "VELLUM_PASSPHRASE"
KEY_FILE_VARIABLE = "VELLUM_KEY_FILE"

AnyKey = Union[bytes, str, "os.PathLike[str]"]


class VolumeOrigin(NamedTuple):
    """Where a volume is."""

    address: str
    """An absolute directory, or the address of a store."""
    credentials: Optional[str] = None
    """The name of the credentials for the store."""
    plain: bool = False
    """Whether it is without encryption, if it was opened by an address."""


# Volumes of snapshots that were unpickled, with the process that opened them. They stay open: each opening of an encrypted
# volume tries its secret, which takes as long as its passphrase is to be hard to guess.
_opened: Dict[Tuple[int, VolumeOrigin], Volume] = {}


def is_address(text: str) -> bool:
    """Whether a text is the address of a store; all others are paths."""
    return "://" in text


def find_secret(passphrase: Union[str, bytes, None], key: Optional[AnyKey], plain: bool) -> Optional[bytes]:
    """Returns what opens a volume: an argument, or else what the environment names."""
    if passphrase is not None and key is not None:
        raise Usage("give passphrase= or key=, not both")
    if plain:
        if passphrase is not None or key is not None:
            raise Usage("a volume without encryption has no passphrase and no key: leave out plain=True, or these")
        return None
    if passphrase is not None:
        return _refuse_empty(os.fsencode(passphrase), "the passphrase is empty")
    if isinstance(key, bytes):
        return _refuse_empty(key, "the key is empty")
    if key is not None:
        return _read_key_file(os.fspath(key))
    if os.environ.get(PASSPHRASE_VARIABLE):
        return os.fsencode(os.environ[PASSPHRASE_VARIABLE])
    file = os.environ.get(KEY_FILE_VARIABLE)
    return _read_key_file(file) if file else None


def _read_key_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return _refuse_empty(file.read(), f"{path} is empty: it must hold a passphrase or a key")


def _refuse_empty(secret: bytes, message: str) -> bytes:
    # Mostly whatever should have given the secret has failed.
    if not secret.rstrip(b"\r\n"):
        raise Usage(message)
    return secret


def refuse_store_options(
    passphrase: Union[str, bytes, None], key: Optional[AnyKey], credentials: Optional[str], plain: bool
) -> None:
    """Fails if one of the arguments for addresses was given with a directory, which has its key and names its store."""
    if plain or any(given is not None for given in (passphrase, key, credentials)):
        raise Usage(
            "passphrase=, key=, credentials= and plain= are for addresses: a directory has its key, and names its store"
        )


def open_origin(origin: VolumeOrigin) -> Volume:
    """Opens a volume where another process had it open."""
    from .volumes import open_volume

    if is_address(origin.address):
        return open_volume(origin.address, credentials=origin.credentials, plain=origin.plain)
    return open_volume(origin.address)


def open_origin_snapshot(origin: VolumeOrigin, snapshot: str) -> Snapshot:
    """Opens a snapshot that another process had open."""
    from .trees import Snapshot

    known = (os.getpid(), origin)
    if known not in _opened or _opened[known].closed:
        _opened[known] = open_origin(origin)
    # Not by `Volume.snapshot`, since that volume would keep all of them open as long as it is.
    return Snapshot(_opened[known].open_native_snapshot(snapshot), origin)
