"""A store is opened by its URL."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from mandor.errors import Invalid
from mandor.store.access import StoreAccess
from mandor.store.base import Store
from mandor.store.memory import MemoryStore
from mandor.store.open import open_store
from mandor.store.sqlite import SqliteStore


async def test_memory_and_sqlite_by_url(tmp_path: Path) -> None:
    async with await open_store("memory:") as store:
        assert isinstance(store, MemoryStore)
    async with await open_store(f"sqlite:{tmp_path / 'state.db'}") as store:
        assert isinstance(store, SqliteStore)
    assert (tmp_path / "state.db").exists()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "there is"),
        ("state.db", "sqlite:"),
        (":memory:", "sqlite"),
        ("sqllite:state.db", "`sqlite`"),
        ("floppy:a", "memory"),
        ("sqlite:", "sqlite:/"),
        ("etcd://", "2379"),
        ("etcd://host:port/x", "2379"),
    ],
)
async def test_an_invalid_store_url_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(Invalid) as caught:
        await open_store(url)
    assert hint in f"{caught.value} {caught.value.hint}"


class PluggedIn(MemoryStore):
    """A store of a third party."""


async def open_plugged_in(address: str, access: StoreAccess) -> Store:
    assert (address, access.user) == ("//shelf", "ani")
    return PluggedIn()


async def test_entry_points_add_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="shelf", value=f"{__name__}:open_plugged_in", group="mandor.stores")
    monkeypatch.setattr(EntryPoint, "load", lambda self: open_plugged_in)
    monkeypatch.setattr("mandor.lib.registry.entry_points", lambda group: EntryPoints([point]))
    async with await open_store("shelf://shelf", access=StoreAccess(user="ani")) as store:
        assert isinstance(store, PluggedIn)


def test_a_password_is_not_shown() -> None:
    assert "rahasia" not in repr(StoreAccess(user="ani", password="rahasia"))
