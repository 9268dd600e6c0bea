"""Nomad's templates and artifacts: what of them can be said before a task starts, and that it works."""

from __future__ import annotations

import hashlib
import http.server
import io
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.importers.nomad.go_template import NoCounterpart, Rendered, rendered, secret_name
from tests.unit.importers.test_nomad import CONFIG, group_of, imported, task_of, told

KNOWN = {"NOMAD_JOB_NAME": "shop"}


def said(data: str) -> Rendered:
    return rendered(data, "{{", "}}", KNOWN.get)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("plain $HOME", "plain $HOME"),
        ('job: {{ env "NOMAD_JOB_NAME" }}.', "job: shop."),
        ("a {{- /* nothing */ -}} b", "ab"),
        ('{{ "{{" }}x', "{{x"),
        ('{{ with secret "kv/data/db" }}p={{ .Data.data.pass }}{{ end }}', "p=${secret:kv-db/pass}"),
        ('{{ with secret "db" }}{{ .Data.pass }}{{ end }}', "${secret:db/pass}"),
        ('{{- with nomadVar "x/y" -}}\nA={{ .a }} B={{ .b.Value }}\n{{- end }}', "A=${secret:x-y/a} B=${secret:x-y/b}"),
        ('{{ with secret "db" }}{{ index .Data.data "a-b" }}{{ end }}', "${secret:db/a-b}"),
        ('{{ (secret "kv/data/db").Data.data.pass }}', "${secret:kv-db/pass}"),
        ('{{ with $s := secret "db" }}{{ $s.Data.pass }}{{ end }}', "${secret:db/pass}"),
        ('{{ if true }}a{{ end }}', "a"),
        ('{{ if eq (env "NOMAD_JOB_NAME") "shop" }}yes{{ else }}no{{ end }}', "yes"),
        ('{{ if false }}a{{ else if eq 1 1 }}b{{ else }}c{{ end }}', "b"),
        ('{{ env "NOMAD_JOB_NAME" | toUpper | printf "%s-%d" }}', None),
        ('{{ printf "%s-%d" (env "NOMAD_JOB_NAME" | toUpper) 3 }}', "SHOP-3"),
        ('{{ envOrDefault "NOBODY" "b" }}', "b"),
        ('{{ $x := env "NOMAD_JOB_NAME" }}{{ $x }}{{ $x | replaceAll "o" "0" }}', "shopsh0p"),
        ('{{ range $i, $v := "a,b" | split "," }}{{ $i }}={{ $v }};{{ end }}', "0=a;1=b;"),
        ('{{ range loop 3 }}{{ . }}{{ end }}', "012"),
        ('{{ with env "NOMAD_JOB_NAME" }}in {{ . }}{{ end }}', "in shop"),
        ('{{ "a" | base64Encode }} {{ 5 | subtract 2 }} {{ or "" "x" }} {{ not true }}', "YQ== 3 x false"),
    ],
)  # fmt: skip
def test_what_can_be_reported_of_a_template(data: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(NoCounterpart, match="too few values"):
            said(data)
    else:
        assert said(data).text == text


@pytest.mark.parametrize(
    "data",
    [
        "{{ range loop 1000 }}{{ range loop 1000 }}x{{ end }}{{ end }}",
        "{{ $x := 9 }}{{ range loop 900 }}{{ $x = multiply $x $x }}{{ end }}",
        '{{ $x := "aaaaaaaaaa" }}{{ range loop 99 }}{{ $x = replaceAll "a" "aaaaaaaaaa" $x }}{{ end }}',
        "{{ if true }}" * 100 + "{{ end }}" * 100,
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        '{{ parseJSON "' + "[" * 100_000 + '" }}',
    ],
)
def test_a_hostile_template_is_given_up_soon(data: str) -> None:
    with pytest.raises(NoCounterpart):
        said(data)


@pytest.mark.parametrize(
    "data",
    [
        '{{ key "a/b" }}',
        '{{ range service "db" }}{{ .Address }}{{ end }}',
        '{{ env "NOMAD_NOBODY" }}',
        "{{ .Data.x }}",
        '{{ with secret "a" }}',
        "{{ open",
        '{{ if env "NOMAD_NODE" }}a{{ end }}',
        '{{ with secret "a" }}{{ .Data.x | toJSON }}{{ end }}',
    ],
)  # fmt: skip
def test_what_cannot_be_reported_of_a_template(data: str) -> None:
    with pytest.raises(NoCounterpart):
        said(data)


@given(st.text('{}-. "abwithsecretendkeyDat/*`$\n', max_size=40))
def test_any_text_is_reported_or_not(data: str) -> None:
    try:
        found = said(data)
    except NoCounterpart:
        return
    assert "{{" not in data or len(found.text) < len(data) + 60


def test_the_name_of_a_secret_is_that_of_its_path() -> None:
    assert secret_name("/kv/data/team/db/") == "kv-team-db"
    assert secret_name("nomad/jobs/Shop") == "nomad-jobs-shop"


def template(data: str, more: str = "") -> str:
    return f'{CONFIG}\ntemplate {{\ndata = <<EOH\n{data}\nEOH\ndestination = "secrets/a"\n{more}\n}}'


@pytest.mark.req("S0-32")
def test_variables_of_a_template_are_secrets_or_hold_some() -> None:
    data = '{{ with secret "db" }}\nPASSWORD="{{ .Data.pass }}"\nURL=me:{{ .Data.pass }}@db\n{{ end }}\nPLAIN=a$b'
    task = task_of('vault { policies = ["x"] }\n' + template(data, "env = true"))
    assert task["secrets"] == {"PASSWORD": "db/pass"}
    assert task["env"] == {"URL": "me:${secret:db/pass}@db", "PLAIN": "a$b"}
    text = f'job "j" {{\ngroup "g" {{\ntask "t" {{\nvault {{}}\n{template(data, "env = true")}\n}}\n}}\n}}'
    fates = {path.rpartition("task.t.")[2]: fate for _, path, fate in told(imported(text)) if "task.t." in path}
    assert (fates["vault"], fates["template[0].data"]) == ("guessed", "guessed")
    assert imported(text).report.dropped == 0


def test_a_file_is_a_secret_or_is_filled_in() -> None:
    whole = '{{ with secret "tls" }}{{ .Data.cert }}{{ end }}'
    part = 'token={{ with secret "tls" }}{{ .Data.cert }}{{ end }} node={{ env "node.unique.name" }}'
    task = task_of(template(whole, 'perms = "600"') + "\n" + template(part).removeprefix(CONFIG))
    assert task["files"] == [
        {"path": "/secrets/a", "secret": "tls/cert", "mode": "600"},
        {"path": "/secrets/a", "content": "token=${secret:tls/cert} node=${MANDOR_NODE}\n", "fill": True},
    ]


@pytest.mark.parametrize(
    ("more", "on_change", "signal"),
    [
        ('change_mode = "signal"', "signal", None),
        ('change_mode = "signal"\nchange_signal = "SIGUSR1"', "signal", "SIGUSR1"),
        ('change_mode = "restart"', "restart", None),
        ('change_mode = "noop"', None, None),
        ('change_mode = "script"', None, None),
        ('change_mode = "signal"\ndestination = "a"', None, None),
    ],
)
def test_the_change_mode_of_a_template_with_a_secret_is_kept(
    more: str, on_change: str | None, signal: str | None
) -> None:
    text = template('{{ with secret "tls" }}{{ .Data.cert }}{{ end }}', more)
    if "destination" in more:
        text = text.replace('destination = "secrets/a"\n', "")
    task = task_of(text)
    assert task["files"][0].get("on_change") == on_change
    assert task.get("change_signal") == signal


def test_a_batch_is_not_restarted_by_a_template() -> None:
    text = template('{{ with secret "tls" }}{{ .Data.cert }}{{ end }}', 'change_mode = "restart"')
    found = imported(f'job "j" {{\ntype = "batch"\ngroup "g" {{\ntask "t" {{\n{text}\n}}\n}}\n}}')
    assert "on_change" not in str(found.made[-1].manifest)
    assert any(path.endswith("change_mode") and fate == "dropped" for _, path, fate in told(found))


def test_secrets_without_a_source_are_reported() -> None:
    text = f'job "j" {{\ngroup "g" {{\ntask "t" {{\nvault {{}}\n{CONFIG}\n}}\n}}\n}}'
    assert (4, "job.j.group.g.task.t.vault", "dropped") in told(imported(text))


def test_what_only_a_node_knows_is_filled_in_by_its_agent() -> None:
    group = 'network {\nport "http" {}\nport "db" {\nstatic = 5432\n}\n}'
    env = (
        'env {\nA = "${NOMAD_PORT_http} ${NOMAD_PORT_db} ${NOMAD_ALLOC_INDEX}"\n'
        'B = "${NOMAD_ADDR_db} ${NOMAD_IP_http}"\nC = "${NOMAD_HOST_PORT_http} ${node.unique.name}"\n}'
    )
    assert task_of(f"{CONFIG}\n{env}", group)["env"] == {
        "A": "${MANDOR_PORT_HTTP} 5432 ${MANDOR_INDEX}",
        "B": "${MANDOR_NODE_ADDRESS}:5432 ${MANDOR_NODE_ADDRESS}",
        "C": "${MANDOR_HOST_PORT_HTTP} ${MANDOR_NODE}",
    }


def test_tasks_that_name_the_shared_folder_share_one() -> None:
    tasks = (
        'task "a" {\ndriver = "raw_exec"\nconfig {\ncommand = "cat"\nargs = ["${NOMAD_ALLOC_DIR}/x"]\n}\n}\n'
        'task "b" {\ndriver = "raw_exec"\nconfig {\ncommand = "true"\n}\n}\n'
    )
    text = f'job "j" {{\ngroup "g" {{\n{tasks}}}\n}}'
    group = imported(text).made[-1].manifest["groups"]["g"]
    assert group["volumes"] == {"alloc": {"type": "scratch", "mode": "0777"}}
    assert group["tasks"]["a"]["mounts"] == [{"volume": "alloc", "path": "alloc"}]
    assert "mounts" not in group["tasks"]["b"]
    sticky = imported(text.replace('task "a"', 'ephemeral_disk {\nsticky = true\nmigrate = true\n}\ntask "a"'))
    assert sticky.made[-1].manifest["groups"]["g"]["volumes"]["alloc"]["per_instance"] is True


def test_of_a_check_that_another_one_covers_only_the_pace_is_lost() -> None:
    checks = (
        'check {\ntype = "tcp"\ninterval = "9s"\ntimeout = "1s"\n}\n'
        'check {\ntype = "http"\npath = "/ok"\ninterval = "5s"\ntimeout = "1s"\n}'
    )
    group = f'network {{\nport "http" {{\nto = 80\n}}\n}}\nservice {{\nname = "a"\nport = "http"\n{checks}\n}}'
    text = f'job "j" {{\ngroup "g" {{\n{group}\ntask "t" {{\n{CONFIG}\n}}\n}}\n}}'
    found = imported(text)
    task = found.made[-1].manifest["groups"]["g"]["tasks"]["t"]
    assert task["readiness"] == {"http": "/ok", "port": "http", "interval": "5s", "timeout": "1s"}
    assert [note.path.rpartition(".")[2] for note in found.report.notes if note.fate == "dropped"] == [
        "interval",
        "timeout",
    ]


def test_what_nomad_itself_does_not_heed_is_no_loss() -> None:
    text = (
        'job "j" {\nupdate {\nstagger = "10s"\nmax_parallel = 1\n}\ngroup "g" {\ntask "t" {\n'
        f'{CONFIG}\nresources {{\nnetwork {{\nmbits = 10\nport "a" {{}}\n}}\n}}\n}}\n}}\n}}'
    )
    assert imported(text).report.dropped == 0
    daemon = imported(text.replace('job "j" {', 'job "j" {\ntype = "system"')).made[-1].manifest
    assert daemon["groups"]["g"]["update"]["min_healthy"] == "10s"


# Artifacts.


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Serves a folder on this machine."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "hello").write_text("#!/bin/sh\necho hello $1\n")
    with tarfile.open(folder / "many.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("inner/name")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"ok"))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(command: list[str], folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def process(command: str, args: str, artifacts: str) -> list[str]:
    task = task_of(f'driver = "raw_exec"\nconfig {{\ncommand = "{command}"\nargs = [{args}]\n}}\n{artifacts}')
    return [*task["command"], *task["args"]]


@pytest.mark.req("S0-32")
def test_a_process_fetches_its_program_and_is_it(web: str, tmp_path: Path) -> None:
    checksum = hashlib.sha256((tmp_path / "web" / "hello").read_bytes()).hexdigest()
    options = f'options {{\nchecksum = "sha256:{checksum}"\n}}'
    words = process("hello", '"you"', f'artifact {{\nsource = "{web}/hello"\n{options}\n}}')
    assert run(words, tmp_path / "work").splitlines()[-1] == "hello you"
    assert run(words, tmp_path / "work").splitlines()[-1] == "hello you", "what is there is not fetched again"


def test_archives_are_unpacked_where_they_belong(web: str, tmp_path: Path) -> None:
    artifact = f'artifact {{\nsource = "{web}/many.tar.gz"\ndestination = "local/there"\n}}'
    assert run(process("cat", '"local/there/inner/name"', artifact), tmp_path / "work") == "ok"
    named = f'artifact {{\nsource = "{web}/hello"\ndestination = "local/mine"\nmode = "file"\n}}'
    assert "echo hello" in run(process("cat", '"local/mine"', named), tmp_path / "other")


def test_a_wrong_checksum_keeps_it_from_starting(web: str, tmp_path: Path) -> None:
    options = f'options {{\nchecksum = "sha256:{"0" * 64}"\n}}'
    words = process("hello", '"you"', f'artifact {{\nsource = "{web}/hello"\n{options}\n}}')
    (tmp_path / "work").mkdir()
    for _ in range(2):
        done = subprocess.run(words, cwd=tmp_path / "work", capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert "hello you" not in done.stdout


def test_for_a_container_another_task_fetches_first() -> None:
    group = group_of(task=f'{CONFIG}\nartifact {{\nsource = "https://a.example/x.zip"\n}}')
    assert list(group["tasks"]) == ["app-fetch", "app"]
    fetch, app = group["tasks"].values()
    assert (fetch["role"], fetch["mounts"]) == ("init", [{"volume": "app-local", "path": "/local"}])
    assert app["mounts"] == fetch["mounts"]
    assert "https://a.example/x.zip" in fetch["command"][-1]
    assert group["volumes"] == {"app-local": {"type": "scratch", "mode": "0777"}}


@pytest.mark.parametrize(
    "inside",
    [
        'source = "s3::https://a.example/x"',
        'source = "git::https://a.example/x"',
        'source = "https://a.example/x"\noptions {\nsshkey = "x"\n}',
        'source = "https://a.example/x"\noptions {\nchecksum = "crc:1;reboot"\n}',
    ],
)
def test_an_artifact_that_cannot_be_fetched_is_reported(inside: str) -> None:
    text = f'job "j" {{\ngroup "g" {{\ntask "t" {{\n{CONFIG}\nartifact {{\n{inside}\n}}\n}}\n}}\n}}'
    found = imported(text)
    assert (7, "job.j.group.g.task.t.artifact[0].source", "dropped") in told(found)
    assert list(found.made[-1].manifest["groups"]["g"]["tasks"]) == ["t"]


def test_what_templates_write_is_found_where_their_folder_is_mounted() -> None:
    found = imported("""job "a" { group "g" { task "t" {
  driver = "docker"
  template {
    data = "one"
    destination = "${NOMAD_TASK_DIR}/conf/a.conf"
  }
  template {
    data = "two"
    destination = "secrets/b"
  }
  config {
    image = "nginx"
    volumes = ["./local/conf:/etc/conf.d/"]
    mount {
      type = "bind"
      source = "./${NOMAD_SECRETS_DIR}/b"
      target = "/etc/b"
    }
  }
} } }""")
    files = found.made[0].manifest["groups"]["g"]["tasks"]["t"]["files"]
    assert {each["path"]: each["content"] for each in files} == {
        "/local/conf/a.conf": "one", "/etc/conf.d/a.conf": "one", "/secrets/b": "two", "/etc/b": "two",
    }  # fmt: skip
    assert [(note.path.rpartition(".")[2], note.fate) for note in found.report.notes] == [("volumes", "guessed")]
