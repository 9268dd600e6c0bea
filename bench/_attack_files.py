"""Hostile files: manifests and files of other tools sent to the server, and the agent's journal damaged on disk."""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

from bench._attack_target import Campaign, Target

ROOT = Path(__file__).resolve().parent.parent
JUNK = [
    *("null", "[]", "{}", "-1", "9" * 40, "1e400", "true", '"${x"', "[1, 2]", "{{", "\t", "%", "'", "&a [*a]", "*a"),
    *("!!python/object:os.system x", "!!binary AAAA", "? {a: b}", "\u202e", "a" * 10_000, "'\\0'", "<<: *x", "0x1p9"),
    *('"pow(9,99999999)"', '"${range(0,400000000)}"', '"(a+)+$"', '"@every 1ns"', "1.7976931348623157e+309", "~"),
    *("[" * 3000, "{a: " * 2000, "- " * 3000, "2026-13-45", "0o777", "../../../etc/shadow", "file:/etc/passwd"),
]
FOREIGN = {
    "compose": "examples/compose/*.y*ml",
    "kubernetes": "examples/kubernetes/*.y*ml",
    "nomad": "examples/nomad/*.hcl",
}


def damaged(text: str, dice: random.Random) -> str:
    """The text with a few lines removed, repeated, indented or replaced by junk."""
    lines = text.splitlines()
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(max(1, len(lines)))
        line = lines[at] if lines else ""
        junk = dice.choice(JUNK)
        head = line.partition("=" if "=" in line else ":")
        inside = dice.randrange(len(line) + 1)
        lines[at : at + 1] = dice.choice(
            [
                [],
                [line, line],
                [f"{head[0]}{head[1]} {junk}"],
                [line[:inside] + junk + line[inside:]],
                [f"  {line}"],
                [line] * 300,
            ]
        )
    return "\n".join(lines)[:900_000]


def by_manifests(target: Target, dice: random.Random, until: float) -> Campaign:
    """Examples of this repository, damaged; applied for trial and planned by a tenant."""
    campaign = Campaign("manifests")
    texts = [path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))]
    while time.monotonic() < until:
        text = damaged(dice.choice(texts), dice)
        path = dice.choice(["/v1/apply?dry_run=true&namespace=team-a", "/v1/plan?namespace=team-a"])
        path = dice.choice([path, path, path, "/v1/delete?dry_run=true&namespace=team-a"])
        kind = dice.choice(["application/yaml", "application/yaml", "application/json"])
        data = text.encode(errors="replace")
        if kind == "application/json" and dice.random() < 0.7:
            data = json.dumps({"files": [{"name": "a.yaml", "text": text}]}).encode()
        role = dice.choice(["team-a", "team-a", "viewer", "boss", "join"])
        target.attack(campaign, "POST", path, data, {"Content-Type": kind}, role=role)
    target.settle(campaign)
    return campaign


def by_importers(target: Target, dice: random.Random, until: float) -> Campaign:
    """Files of Compose, Kubernetes and Nomad, damaged."""
    campaign = Campaign("importers")
    texts = {name: [path.read_text() for path in sorted(ROOT.glob(where))] for name, where in FOREIGN.items()}
    while time.monotonic() < until:
        name = dice.choice(sorted(texts))
        text = damaged(dice.choice(texts[name]), dice)
        path = dice.choice(["/v1/apply?dry_run=true&", "/v1/plan?"]) + f"format={name}&namespace=team-a"
        role = dice.choice(["team-a", "team-a", "viewer", "join"])
        target.attack(
            campaign,
            "POST",
            path,
            text.encode(errors="replace"),
            {"Content-Type": "application/yaml"},
            role=role,
        )
    target.settle(campaign)
    return campaign


def by_journals(target: Target, dice: random.Random, until: float) -> Campaign:
    """Files of an agent's journal damaged at random: it is read without an error, and loses no file that is whole."""
    from mandor.agent.journal import ClusterMembership, Journal
    from mandor.agent.order import Entry
    from mandor.lib.logs import silence
    from tests.unit.agent.make import make_order

    campaign = Campaign("journals")
    with silence():  # Each damaged file is logged.
        while time.monotonic() < until:
            with tempfile.TemporaryDirectory(prefix="mandor-attack-") as folder:
                home = Path(folder)
                journal = Journal(home)
                entries = {}
                for number in range(dice.randrange(1, 12)):
                    entry = Entry(order=make_order(uid=f"uid-{number}"))
                    entries[entry.order.uid] = entry
                    journal.write(entry)
                journal.keep_membership(ClusterMembership("c1"))
                journal.keep_credential("mdr_node.n1_" + "ab" * 32)
                files = sorted(path for path in home.rglob("*") if path.is_file())
                hit = dice.sample(files, dice.randrange(1, min(4, len(files)) + 1))
                for path in hit:
                    _damage(path, dice)
                try:
                    again = Journal(home)
                    read = {each.order.uid: each for each in again.entries()}
                    _ = again.membership, again.contact, again.credential, again.next_credential, again.sealing_key
                except Exception as error:  # the finding itself
                    campaign.found(f"{type(error).__name__}: {error}: after damage to {[path.name for path in hit]}")
                    campaign.note("error")
                    continue
                whole = {uid: each for uid, each in entries.items() if home / "orders" / f"{uid}.json" not in hit}
                lost = [uid for uid, each in whole.items() if read.get(uid) != each]
                gone = [
                    path.name for path in hit if not path.exists() and not path.with_name(f"{path.name}.bad").exists()
                ]
                if lost or gone:
                    campaign.found(f"lost {lost}, deleted {gone}, after damage to {[path.name for path in hit]}")
                campaign.note("read")
    return campaign


def _damage(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    kind = dice.randrange(6)
    if kind == 0:
        data = data[: dice.randrange(len(data) + 1)]
    elif kind == 1 and data:
        for _ in range(dice.randrange(1, 8)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif kind == 2:
        data = bytearray(len(data))
    elif kind == 3:
        data = bytearray(dice.randbytes(dice.randrange(2000)))
    elif kind == 4:
        data = data + data
    else:
        data = bytearray(b"[" * 5000)
    path.write_bytes(data)
