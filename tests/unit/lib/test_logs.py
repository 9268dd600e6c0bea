"""Log records for people and machines."""

import json
import logging
from collections.abc import Iterator

import pytest

from mandor.lib import logs


@pytest.fixture(autouse=True)
def the_roots_handlers_are_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_for_people_names_module_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("console", "info")
    logging.getLogger("mandor.store.sqlite").info("opened %s", "x.db", extra={"facts": {"objects": 3}})
    assert "store.sqlite: opened x.db objects=3" in capsys.readouterr().err


def test_a_record_for_machines_is_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "info")
    logging.getLogger("mandor.x").debug("not shown")
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("mandor.x").exception("broke\nin two", extra={"facts": {"n": 1}})
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["message"], entry["n"]) == ("error", "broke\nin two", 1)
    assert "KeyError" in entry["trace"]
