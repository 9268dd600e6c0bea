"""Log records for people and machines."""

import asyncio
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


@pytest.mark.req("S2-40")
async def test_log_records_have_the_subject_and_the_source_as_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "info", node="n1")
    log = logging.getLogger("mandor.agent.worker")

    async def look_after(name: str) -> None:
        logs.about(instance=name)
        await asyncio.sleep(0)
        log.info("starts", extra={"facts": {"decision": f"{name}.1"}})

    await asyncio.gather(look_after("web-0"), look_after("web-1"))
    log.info("alone")
    first, second, last = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["node"], first["instance"], first["decision"]) == ("n1", "web-0", "web-0.1")
    assert (second["instance"], second["decision"]) == ("web-1", "web-1.1")
    assert (last["node"], "instance" in last) == ("n1", False)
