"""GitLab as a pipeline: triggered, followed and called off by its API as documented."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mandor.baremetal.gitlab import GitlabPipeline
from mandor.baremetal.pipeline import Pipeline
from mandor.errors import Invalid, Unavailable
from mandor.testing.pipeline import Memory, PipelineSuite
from tests.components.gitlab import PROJECT, READER, TOKEN, TRIGGER, Gitlab, gitlab_at
from tests.components.ports import free_port

ORDER = PipelineSuite().order()


def tokens(folder: Path, token: str = TOKEN) -> tuple[str, str]:
    (folder / "trigger").write_text(f"{TRIGGER}\n")
    (folder / "token").write_text(f"{token}\n")
    return str(folder / "trigger"), str(folder / "token")


@asynccontextmanager
async def working(folder: Path, *states: str, token: str = TOKEN) -> AsyncIterator[tuple[Gitlab, GitlabPipeline]]:
    gitlab = Gitlab(states or ("running", "success"))
    async with gitlab_at(gitlab) as url:
        pipeline = GitlabPipeline(url, PROJECT, "main", *tokens(folder, token), poll=0.01)
        try:
            yield gitlab, pipeline
        finally:
            await pipeline.close()


@pytest.mark.req("S4-30")
class TestGitlab(PipelineSuite):
    @pytest.fixture
    async def make(self, tmp_path: Path) -> AsyncIterator[Callable[[], Pipeline]]:
        self.gitlab = Gitlab()
        made: list[Pipeline] = []
        async with gitlab_at(self.gitlab) as url:

            def make() -> Pipeline:
                made.append(GitlabPipeline(url, PROJECT, "main", *tokens(tmp_path), poll=0.01))
                return made[-1]

            yield make
            for each in made:
                await each.close()

    @pytest.fixture
    async def away(self, tmp_path: Path) -> AsyncIterator[Pipeline]:
        pipeline = GitlabPipeline(f"http://127.0.0.1:{free_port()}", PROJECT, "main", *tokens(tmp_path))
        yield pipeline
        await pipeline.close()

    def there(self, name: str) -> bool:
        for number in range(1, len(self.gitlab.runs) + 1):  # What nobody looks at goes on, too.
            self.gitlab.looks[number] = 100
            self.gitlab.state(number)
        return name in self.gitlab.machines

    async def begun(self, run: Memory) -> None:
        while not run.id:
            await asyncio.sleep(0)


async def test_it_is_triggered_once_with_the_order_and_followed_to_its_end(tmp_path: Path) -> None:
    async with working(tmp_path) as (gitlab, pipeline):
        run = Memory()
        await pipeline.create(ORDER, run)
    assert run.kept == ["create 1", ""]
    (form,) = gitlab.runs
    assert form["variables[MANDOR_ACTION]"] == "create"
    assert form["variables[MANDOR_VM]"] == "suite-1"
    assert form["variables[MANDOR_NODE]"] == "bm-1"
    assert form["variables[MANDOR_MEMORY_MIB]"] == "128"


async def test_one_that_never_ends_is_called_off_before_what_it_made_is_taken_away(tmp_path: Path) -> None:
    async with working(tmp_path, "running") as (gitlab, pipeline):
        run = await TestGitlab().broken_off(pipeline)
        gitlab.states = ("running", "success")
        await pipeline.delete(ORDER, run)
        assert gitlab.cancelled == {1}
        assert gitlab.state(1) == "canceled"
        assert [form["variables[MANDOR_ACTION]"] for form in gitlab.runs] == ["create", "delete"]


async def test_a_token_that_may_not_call_it_off_is_reported_and_nothing_is_taken_away_beside_it(tmp_path: Path) -> None:
    async with working(tmp_path, "running", token=READER) as (gitlab, pipeline):
        run = await TestGitlab().broken_off(pipeline)
        with pytest.raises(Invalid, match="insufficient_scope"):
            await pipeline.delete(ORDER, run)
        assert len(gitlab.runs) == 1


async def test_one_that_failed_may_be_tried_again_and_a_wrong_token_not(tmp_path: Path) -> None:
    async with working(tmp_path, "running", "failed") as (_, pipeline):
        with pytest.raises(Unavailable, match="GitLab pipeline 1 ended with status failed"):
            await pipeline.create(ORDER, Memory())
        with pytest.raises(Unavailable, match="deleted"):
            await pipeline.create(ORDER, Memory("create 99"))
        (tmp_path / "trigger").write_text("wrong")
        with pytest.raises(Invalid, match="404"):
            await pipeline.create(ORDER, Memory())
    with pytest.raises(Invalid, match="not the address of a GitLab"):
        GitlabPipeline("http://gitlab.example.org", "p", "main", "a", "b")
