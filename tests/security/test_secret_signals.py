"""Changed secrets reach running tasks in place with `on_change: signal`, on every engine, and reach nobody else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mandor.agent.live_files import Owner, has_changed, write_live_files
from mandor.errors import Invalid
from mandor.model.live_file import LiveFile
from mandor.model.manifest import load_manifests
from mandor.model.task import File
from tests.components.containerd import Containerd
from tests.components.docker import RunningDocker
from tests.components.image import NAME
from tests.components.incus import IMAGE, Incus
from tests.components.podman import Podman
from tests.e2e.cluster import Cluster, eventually
from tests.security.tenants import ATTACKER, ENGINES, VICTIM, Tenants

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="other users' files need root: run the tests as root")
WATCH = (
    "show() {{ echo $(cat {folder}/password) $(stat -c %a:%u {folder}/password) $(cat {folder}/deep/conf); }}; "
    "trap show HUP; trap 'exit 0' TERM; show; while :; do sleep 0.1; done"
)
FILES = """
files:
  - {{path: {folder}/password, secret: db/password, mode: "0440"}}
  - {{path: {folder}/deep/conf, content: "user=${{secret:db/user}}", fill: true}}
on_change: signal
"""


def db(namespace: str, password: str, user: str = "me") -> str:
    data = f"{{password: {password}, user: {user}, other: {password}}}"
    return f"kind: secret\nname: db\nnamespace: {namespace}\ndata: {data}\n"


# Manifests.


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("secrets: {A: db}\non_change: signal", "`signal` cannot change environment variables of a running process: A"),
        ("env: {A: 'x${secret:db}'}\non_change: signal", "cannot change environment variables"),
        ("on_change: signal", "`signal` needs a file with a secret, and the task has none"),
        ("files: [{path: a/b, content: c, on_change: signal}]", "a change of `content` is always rolled out"),
        ("change_signal: SIGUSR1", "`change_signal` is sent only with `on_change: signal`"),
        ("files: [{path: a/b, secret: db}]\non_change: signal\nchange_signal: HUP", "'HUP' is not a signal"),
        ("files: [{path: a/b, secret: db}]\non_change: signal\nchange_signal: SIGKILL", "cannot be handled"),
        ("files: [{path: a/b, secret: db}]\non_change: signal\nrole: init", "an init task gets no signals"),
        ("files: [{path: password, secret: db}]\non_change: signal", "needs a folder of its own"),
        ("files: [{path: /etc/password, secret: db}]\non_change: signal", "needs a folder of its own"),
        ("files: [{path: /dev/x/password, secret: db}]\non_change: signal", "needs a folder of its own"),
        ("image: a\nfiles: [{path: a/b, secret: db}]\non_change: signal", "needs an absolute path"),
        (
            "image: a\nworking_dir: /app\nfiles: [{path: b, secret: db}]\non_change: signal",
            "needs a folder of its own",
        ),
        (
            "files: [{path: /a/b, secret: db}]\non_change: signal\nmounts: [{tmpfs: 1Mi, path: /a}]",
            "/a is in the folder of the file /a/b",
        ),
    ],
)
def test_a_manifest_that_a_signal_cannot_serve_is_refused(manifest: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        load_manifests(f"name: web\ngroups: {{main: {{tasks: {{main: {_flow(manifest)}}}}}}}\n")
    assert message in str(caught.value)


def _flow(manifest: str) -> str:
    return "{command: ['true'], " + ", ".join(manifest.splitlines()) + "}"


# Files of the node.


def live(name: str, text: str, *, mode: str = "0644", secret: bool = True) -> LiveFile:
    return LiveFile("/run/app", 0, name, File(path=f"/run/app/{name}", content=text, mode=mode), secret)


def test_only_files_with_another_text_are_replaced_and_readers_keep_the_old_one(tmp_path: Path) -> None:
    place, owner = tmp_path / "files" / "containers" / "u.main", Owner.of(None, image=True)
    first = [live("a", "1"), live("deep/b", "2")]
    assert has_changed(place, first)
    assert write_live_files(place, first, owner) == ["/run/app/a", "/run/app/deep/b"]
    with open(place / "0" / "a", encoding="utf-8") as held:
        assert not has_changed(place, first)
        assert write_live_files(place, [live("a", "3"), live("deep/b", "2")], owner) == ["/run/app/a"]
        assert held.read() == "1"
    assert (place / "0" / "a").read_text() == "3"
    assert sorted(path.name for path in (place / "0").iterdir()) == ["a", "deep"]


@AS_ROOT
def test_a_file_belongs_to_the_user_of_its_task_and_others_cannot_read_it(tmp_path: Path) -> None:
    place = tmp_path / "files" / "processes" / "u.main"
    for text in ("1", "2"):
        write_live_files(place, [live("a", text), live("b", text, mode="0640")], Owner.of("1234:99", image=False))
        found = [(place / "0" / name).stat() for name in ("a", "b")]
        assert [(each.st_uid, each.st_gid, each.st_mode & 0o777) for each in found] == [
            (1234, 99, 0o400),
            (1234, 99, 0o640),
        ]
    assert (place / "0").stat().st_mode & 0o777 == 0o500
    assert (place / "0").stat().st_uid == 1234


@AS_ROOT
@pytest.mark.parametrize("trick", ["file", "folder", "draft", "hard link"])
def test_links_in_a_folder_of_the_task_lead_no_write_elsewhere(tmp_path: Path, trick: str) -> None:
    """The task owns its live folders where they are not mounted read-only, and the agent writes there as root."""
    place, target = tmp_path / "files" / "processes" / "u.main", tmp_path / "target"
    owner = Owner.of(1234, image=False)
    target.mkdir()
    (target / "shadow").write_text("root")
    (target / "shadow").chmod(0o600)
    write_live_files(place, [live("deep/a", "1")], owner)
    deep = place / "0" / "deep"
    if trick == "file":
        (deep / "a").unlink()
        (deep / "a").symlink_to(target / "shadow")
    elif trick == "draft":
        (deep / ".a.new").symlink_to(target / "shadow")
    elif trick == "hard link":
        (deep / "a").unlink()
        os.link(target / "shadow", deep / "a")
    else:
        (deep / "a").unlink()
        deep.rmdir()
        deep.symlink_to(target)
        with pytest.raises(OSError):
            write_live_files(place, [live("deep/a", "2")], owner)
    if trick != "folder":
        assert write_live_files(place, [live("deep/a", "2")], owner)
        assert (deep / "a").read_text() == "2"
        assert not (deep / "a").is_symlink()
    assert os.listdir(target) == ["shadow"]
    found = (target / "shadow").stat()
    assert ((target / "shadow").read_text(), found.st_uid, found.st_mode & 0o777) == ("root", os.geteuid(), 0o600)


# A cluster with one engine.


def test_a_change_while_the_agent_is_away_is_delivered_when_it_comes_back(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        agent = cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(db("default", "one"))
        script = WATCH.format(folder="live")
        files = FILES.format(folder="live")
        cluster.apply(f'name: web\nengine: process\ncommand: [sh, -c, "{script}"]\nstop: {{grace: 1s}}\n{files}')
        (before,) = cluster.wait_running("web", 1)

        def shown() -> list[str]:
            return [line.split()[0] for line in cluster.mandor("logs", "web-0").stdout.splitlines()]

        eventually("the task shows its file", lambda: shown() == ["one"])
        agent.end()
        cluster.apply(db("default", "two"))
        cluster.start_agent("n1")
        eventually("the task shows the new value", lambda: shown() == ["one", "two"])
        # Another key of the secret changes no file: the task gets no signal.
        cluster.apply(db("default", "two").replace("other: two", "other: three"))
        cluster.apply(db("default", "two", user="you"))
        eventually("the task shows the other file", lambda: len(shown()) == 3)
        assert cluster.mandor("logs", "web-0").stdout.splitlines()[-1].endswith("user=you")
        (after,) = cluster.wait_running("web", 1)
        assert after["meta"]["uid"] == before["meta"]["uid"]
        assert after["status"].get("restarts", 0) == 0
        events = [one["spec"] for one in cluster.items("events") if one["spec"]["reason"] == "SecretChanged"]
        told = [one["message"] for one in events if one["about"] == "instance default/web-0"]
        assert "secret db changed: replaced live/password and sent SIGHUP to task main" in told
        assert "two" not in str(cluster.items("events")) + str(cluster.items("instances"))


# All engines, at the level `restricted`, with an attacker on the same node.


@pytest.fixture(scope="module")
def tenants(docker: RunningDocker, podman: Podman, containerd: Containerd, incus: Incus) -> Iterator[Tenants]:
    options = {
        "docker.socket": docker.socket,
        "podman.socket": podman.socket,
        "cri.socket": containerd.socket,
        "incus.url": incus.url,
    }
    words = tuple(word for key, value in options.items() for word in ("--engine-option", f"{key}={value}"))
    images = {"docker": NAME, "podman": NAME, "cri": NAME, "incus": IMAGE}
    with tempfile.TemporaryDirectory(prefix="mandor-signals-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        running = Tenants(Path(folder, "cluster"), words, images)
        try:
            running.start()
            yield running
        except BaseException:
            running.print_logs()
            raise
        finally:
            running.stop()


@AS_ROOT
@pytest.mark.timeout(600)
@pytest.mark.real("docker", "podman", "containerd", "incus")
def test_a_changed_secret_is_replaced_in_running_tasks_of_every_engine(tenants: Tenants) -> None:
    first, second = f"{tenants.marker}-one", f"{tenants.marker}-two"
    tenants.apply(db(VICTIM, first))
    for engine in ENGINES:
        folder = "live" if engine == "process" else "/run/live"
        more = FILES.format(folder=folder)
        tenants.apply(tenants.manifest(VICTIM, f"web-{engine}", engine, WATCH.format(folder=folder), more))

    def shown(engine: str) -> list[list[str]]:
        return [line.split() for line in tenants.logs(VICTIM, f"web-{engine}-0").splitlines()]

    def replaced(engine: str) -> bool:
        return len(shown(engine)) >= 2

    for engine in ENGINES:
        eventually(f"{engine} shows its file", partial(shown, engine), patience=180)
    before = {
        each["meta"]["name"]: each["meta"]["uid"] for each in tenants.items("instances", query=f"?namespace={VICTIM}")
    }
    tenants.apply(db(VICTIM, second))
    for engine in ENGINES:
        eventually(f"{engine} shows the new value", partial(replaced, engine), patience=60)
        old, new = shown(engine)
        assert (old[0], new[0]) == (first, second)
        assert old[1:] == new[1:], f"{engine}: another owner, mode or text"
        assert old[1].startswith("440:")
    after = tenants.items("instances", query=f"?namespace={VICTIM}")
    assert {each["meta"]["name"]: each["meta"]["uid"] for each in after} == before
    assert {each["status"]["phase"] for each in after} == {"Running"}
    assert not any(each["status"].get("restarts") for each in after)

    marker = tenants.marker.replace("3", "[3]", 1)
    attacks = {
        "search": f"grep -rsl '{marker}' /run /tmp /var /dev/shm /proc/[0-9]*/root/run",
        "guess": "cat /run/mandor/n1/files/*/*/0/password /run/mandor/n1/files/processes/*/0/password",
        "replace": "for f in /run/mandor/n1/files/*/*/0; do touch $f/password && echo PWNED; done; true",
    }
    for engine in ENGINES:
        output = tenants.run_attacks_as(engine, f"thief-{engine}", attacks)
        text = "".join(output.values())
        assert tenants.marker not in text, engine
        assert "PWNED" not in text, engine
        assert not output["search"].strip(), engine
    assert ATTACKER in tenants.tokens
