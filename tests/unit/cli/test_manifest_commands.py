"""`mandor apply`, `diff` and `delete` against a real API."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import LiveApi, Mandor

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
WEB = "name: web\nimage: nginx:1.27\nreplicas: 2\nlabels: {app: web}\n"


@pytest.fixture
def web(tmp_path: Path) -> str:
    (tmp_path / "web.yaml").write_text(WEB)
    return "web.yaml"


@pytest.mark.req("S2-10", "S2-11")
def test_apply_creates_changes_and_then_changes_nothing(api: LiveApi, mandor: Mandor, web: str) -> None:
    assert mandor("apply", "-f", web).out == "workload default/web created\n"
    assert mandor("apply", "-f", web).out == "workload default/web unchanged\n"
    Path(web).write_text(WEB.replace("replicas: 2", "replicas: 3"))
    told = mandor("apply", "-f", web)
    assert told.code == 0
    assert told.out == "workload default/web changed\n  ~ spec.groups.main.replicas: 2 → 3\n"
    assert api.get("workload", "web").spec.groups["main"].replicas == 3


@pytest.mark.req("S2-12")
def test_a_mistake_is_reported_with_file_line_and_hint_and_nothing_is_stored(
    api: LiveApi, mandor: Mandor, tmp_path: Path
) -> None:
    (tmp_path / "good.yaml").write_text("name: good\nimage: x\n")
    (tmp_path / "bad.yaml").write_text("name: bad\nimage: x\nreplcias: 3\nresources: {cpu: lots}\n")
    told = mandor("apply", "-f", "good.yaml", "-f", "bad.yaml")
    assert told.code == 1
    assert "error: bad.yaml:3: unknown key `replcias`\nhint: did you mean `replicas`?\n" in told.err
    assert "error: bad.yaml:4: `resources.cpu`: 'lots' is not an amount of CPU" in told.err
    assert told.out == ""
    assert api.get("workload", "good") is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"name: a\nimage: \xff\xfe", "bad.yaml:2: not valid UTF-8 text"),
        (b"\x00\x01\x02", "bad.yaml:1: the character U+0000"),
        (b"# " + b"x" * (10 << 20), "bad.yaml:1: more than 1,048,576 bytes"),
        (b"# " + b"x" * (16 << 20), "bad.yaml:1: more than 16,777,216 bytes"),
        (b"a: &a [x, x, x]\nb: &b [*a, *a, *a]\n" * 1, "an object must be a mapping|unknown key|`name` is missing"),
        (b"name: a\nimage: x\n---\nname: a\nimage: y\n", "bad.yaml:4: `name`: workload default/a is defined twice"),
        (b"name: a\nengine: dokcer\nimage: x\n", "unknown engine 'dokcer'"),
        (b"name: " + b"x" * 300 + b"\nimage: x\n", "bad.yaml:1: `name`: the name"),
        (b"", "bad.yaml:1: the manifest contains no object"),
    ],
    ids=["bytes", "control", "10MiB", "16MiB", "aliases", "twice", "engine", "name", "empty"],
)
def test_bad_input_gets_a_clear_error(api: LiveApi, mandor: Mandor, tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(data)
    told = mandor("apply", "-f", "bad.yaml")
    assert told.code == 1
    assert any(part in told.err for part in says.split("|")), told.err
    assert api.get("workload", "a") is None


def test_a_bomb_is_refused(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    told = mandor("apply", "-f", "bomb.yaml")
    assert told.code == 1
    assert "bomb.yaml:5: more than 100,000 values" in told.err


def test_a_file_that_is_not_there_is_reported(api: LiveApi, mandor: Mandor) -> None:
    told = mandor("apply", "-f", "nowhere.yaml")
    assert (told.code, told.err) == (1, "error: cannot read nowhere.yaml: no such file or directory\ncode: invalid\n")


def test_a_folder_gives_its_manifests_in_order(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "2.yml").write_text("name: two\nimage: x")
    (folder / "1.yaml").write_text("name: one\nimage: x")
    (folder / "3.json").write_text('{"name": "three", "image": "x"}')
    (folder / "notes.txt").write_text("not a manifest")
    told = mandor("apply", "-f", "all")
    assert [line.split()[1] for line in told.out.splitlines()] == ["default/one", "default/two", "default/three"]
    (tmp_path / "empty").mkdir()
    assert "no manifest in empty" in mandor("apply", "-f", "empty").err


def test_stdin_is_a_file_called_dash(api: LiveApi, mandor: Mandor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name: piped\nimage: x")))
    assert mandor("apply", "-f", "-").out == "workload default/piped created\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name: piped\nimge: x")))
    assert "error: (stdin):2: unknown key `imge`" in mandor("apply", "-f", "-").err


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_can_be_applied(api: LiveApi, mandor: Mandor, path: Path) -> None:
    told = mandor("apply", "-f", str(path))
    assert told.code == 0, told.err
    assert " created\n" in told.out


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_what_get_shows_can_be_applied_again(
    api: LiveApi, mandor: Mandor, web: str, tmp_path: Path, output: str
) -> None:
    mandor("apply", "-f", web)
    for words in (("get", "workloads"), ("get", "workload", "web")):
        (tmp_path / f"export.{output}").write_text(mandor(*words, "-o", output).out)
        assert mandor("apply", "-f", f"export.{output}").out == "workload default/web unchanged\n"


def test_a_dry_run_stores_nothing(api: LiveApi, mandor: Mandor, web: str) -> None:
    assert mandor("apply", "-f", web, "--dry-run").out.startswith("workload default/web would be created\n")
    assert api.get("workload", "web") is None


def test_diff_shows_what_would_change_and_exits_with_0_unless_asked(api: LiveApi, mandor: Mandor, web: str) -> None:
    told = mandor("diff", "-f", web)
    assert told.code == 0
    assert "workload default/web would be created" in told.out
    assert '  + spec.groups.main.tasks.main.image: "nginx:1.27"' in told.out
    assert mandor("diff", "-f", web, "--exit-code").code == 1
    mandor("apply", "-f", web)
    same = mandor("diff", "-f", web, "--exit-code")
    assert (same.code, same.out) == (0, "workload default/web unchanged\n")
    Path(web).write_text("name: web\nimage: nginx:1.28\nreplicas: 2\n")
    changed = mandor("diff", "-f", web)
    assert '  ~ spec.groups.main.tasks.main.image: "nginx:1.27" → "nginx:1.28"' in changed.out
    assert '  - meta.labels.app: "web"' in changed.out


def test_the_answer_is_data_when_asked(api: LiveApi, mandor: Mandor, web: str) -> None:
    told = mandor("apply", "-f", web, "-o", "json")
    assert told.data["results"][0]["action"] == "created"
    assert mandor("diff", "-f", web, "-o", "json").data["results"][0]["action"] == "unchanged"


def test_an_apply_that_leaves_the_count_out_keeps_it(api: LiveApi, mandor: Mandor, web: str) -> None:
    mandor("apply", "-f", web)
    mandor("scale", "web", "7")
    Path(web).write_text("name: web\nimage: nginx:1.27\nlabels: {app: web}\n")
    assert mandor("apply", "-f", web).out == "workload default/web unchanged\n"
    assert api.get("workload", "web").spec.groups["main"].replicas == 7


def test_prune_deletes_what_the_manifests_do_not_name(api: LiveApi, mandor: Mandor, web: str, tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("name: old\nimage: x\nlabels: {app: web}\n---\nname: other\nimage: x\n")
    mandor("apply", "-f", "old.yaml")
    assert mandor("apply", "-f", web, "--prune").code == 1  # of everything? no
    told = mandor("apply", "-f", web, "--prune", "-l", "app=web")
    assert told.out == "workload default/web created\nworkload default/old deleted\n"
    assert api.get("workload", "other") is not None


def test_delete_by_name_and_by_file(api: LiveApi, mandor: Mandor, web: str) -> None:
    mandor("apply", "-f", web)
    assert mandor("delete", "workload", "web").out == "workload default/web deleted\n"
    assert api.get("workload", "web") is None
    mandor("apply", "-f", web)
    assert mandor("delete", "-f", web).out == "workload default/web deleted\n"
    again = mandor("delete", "-f", web)
    assert (again.code, again.out) == (0, "workload default/web not found\n")


def test_delete_of_a_name_that_is_not_there_deletes_nothing(api: LiveApi, mandor: Mandor, web: str) -> None:
    mandor("apply", "-f", web)
    told = mandor("delete", "wl", "web", "wbe")
    assert told.code == 1
    assert "error: there is no workload called wbe" in told.err
    assert "hint: did you mean `web`?" in told.err
    assert api.get("workload", "web") is not None


def test_objects_live_in_the_namespace_that_is_named(api: LiveApi, mandor: Mandor, web: str, tmp_path: Path) -> None:
    (tmp_path / "ns.yaml").write_text("kind: namespace\nname: team\n")
    mandor("apply", "-f", "ns.yaml")
    assert mandor("apply", "-f", web, "-n", "team").out == "workload team/web created\n"
    assert mandor("get", "workload", "web").code == 1
    assert mandor("get", "workload", "web", "-n", "team", "-o", "name").out == "workload/web\n"
    listed = mandor("get", "workloads", "-A")
    assert listed.out.splitlines()[0].startswith("NAMESPACE  NAME")
    assert json.loads(mandor("get", "workloads", "-A", "-o", "json").out)["items"][0]["meta"]["namespace"] == "team"


def test_a_budget_that_forbids_every_drain_is_reported_with_the_apply(
    api: LiveApi, mandor: Mandor, tmp_path: Path
) -> None:
    text = "name: job\ntype: batch\nimage: x\ndisruption: {max_unavailable: 0}\n"
    (tmp_path / "job.yaml").write_text(text)
    told = mandor("apply", "-f", "job.yaml")
    assert told.code == 0
    assert told.out == "workload default/job created\n"
    assert "warning: workload default/job: the disruption budget blocks every drain of its nodes" in told.err
    (tmp_path / "job.yaml").write_text(text.replace("type: batch\n", ""))
    assert "warning" not in mandor("apply", "-f", "job.yaml").err, "a service starts another one first"
