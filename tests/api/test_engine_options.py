"""Engine options and image names are validated by an apply, with the line of an error."""

from __future__ import annotations

import pytest

from mandor.errors import Invalid
from tests.api.conftest import Api
from tests.api.test_apply import actions, send

WEB = "name: web\nengine: docker\nimage: web:1\n"


@pytest.mark.parametrize(
    ("options", "line", "words"),
    [
        ("options:\n  docker:\n    pul: never\n", 6, r"options\.docker\.pul: there is no such option"),
        ("options:\n  docker: {pull: sometimes}\n", 5, r"options\.docker\.pull: Invalid enum value"),
        ("options:\n  docker:\n    init: true\n    log_files: 0\n", 7, r"log_files: Expected `int` >= 1"),
        ("options:\n  docker:\n    log_size: much\n", 6, r"options\.docker\.log_size"),
        ("options:\n  cri:\n    network: bridge\n", 6, r"options\.cri\.network"),
        ("options:\n  incus:\n    type: vm\n", 6, r"options\.incus\.type"),
        ("options:\n  process:\n    log_size: 1Ki\n", 5, "at least 64Ki"),
    ],
)
async def test_a_wrong_engine_option_is_refused_with_its_line(dev: Api, options: str, line: int, words: str) -> None:
    with pytest.raises(Invalid, match=words) as refused:
        await send(await dev.client(), WEB + options)
    assert refused.value.facts["line"] == line


async def test_a_misspelt_engine_option_gets_a_guess(dev: Api) -> None:
    with pytest.raises(Invalid) as refused:
        await send(await dev.client(), WEB + "options: {docker: {pul: never}}\n")
    assert "`pull`" in (refused.value.hint or "")


async def test_options_of_an_engine_that_is_not_known_here_are_the_engines_business(dev: Api) -> None:
    got = await send(await dev.client(), WEB + "options: {docker: {pull: never}, elsewhere: {any: thing}}\n")
    assert actions(got) == {"web": "created"}


@pytest.mark.parametrize(
    ("manifest", "line"),
    [
        (WEB.replace("web:1", "web latest"), 3),
        (WEB.replace("web:1", "Web:1"), 3),
        (
            "name: web\ngroups:\n  a:\n    tasks:\n      main: {image: web}\n      side:\n        role: sidecar\n"
            "        image: https://example.org/web\n",
            8,
        ),
    ],
)
async def test_a_wrong_image_name_is_refused_with_its_line_and_not_stored(dev: Api, manifest: str, line: int) -> None:
    with pytest.raises(Invalid, match="is not the name of an image") as refused:
        await send(await dev.client(), manifest)
    assert refused.value.facts["line"] == line
    assert not (await dev.store.list("workload")).items
