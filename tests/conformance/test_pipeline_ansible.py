"""Ansible as a pipeline: real playbooks, run on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mandor.baremetal.ansible import AnsiblePipeline
from mandor.baremetal.pipeline import Pipeline
from mandor.errors import Invalid, Unavailable
from mandor.testing.pipeline import Memory, PipelineSuite

COMMAND = str(Path(sys.executable).with_name("ansible-playbook"))
PLAYBOOK = """\
- hosts: all
  connection: local
  gather_facts: false
  tasks:
  - name: A virtual machine, as far as this test can tell
    ansible.builtin.raw: |
      cd {folder} && touch begun
      echo {{{{ mandor_vm.node }}}} {{{{ mandor_vm.cpu }}}} {{{{ mandor_vm.memory_mib }}}} > {{{{ mandor_vm.name }}}}
    when: mandor_action == 'create'
  - name: None of it is left
    ansible.builtin.raw: rm -f {folder}/{{{{ mandor_vm.name }}}}
    when: mandor_action == 'delete'
"""
FAILING = """\
- hosts: all
  connection: local
  gather_facts: false
  tasks:
  - ansible.builtin.fail: {msg: no room}
"""


@pytest.mark.req("S4-30")
class TestAnsible(PipelineSuite):
    @pytest.fixture(autouse=True)
    def playbook(self, tmp_path: Path) -> Path:
        self.folder, playbook = tmp_path, tmp_path / "vm.yaml"
        playbook.write_text(PLAYBOOK.format(folder=tmp_path))
        return playbook

    @pytest.fixture
    def make(self, playbook: Path) -> Callable[[], Pipeline]:
        return lambda: AnsiblePipeline(str(playbook), command=COMMAND)

    @pytest.fixture
    def away(self, playbook: Path) -> Pipeline:
        return AnsiblePipeline(str(playbook), command="/no/such/ansible")

    def there(self, name: str) -> bool:
        file = self.folder / name
        return file.exists() and file.read_text() == "bm-1 1 128\n"

    async def begun(self, run: Memory) -> None:
        while not (self.folder / "begun").exists():
            await asyncio.sleep(0.02)


async def test_a_playbook_that_fails_shows_why_and_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text(FAILING)
    with pytest.raises(Unavailable, match="no room"):
        await AnsiblePipeline(str(tmp_path / "vm.yaml"), command=COMMAND).create(TestAnsible().order(), Memory())


async def test_without_a_playbook_it_is_reported() -> None:
    with pytest.raises(Invalid, match="does not exist on this server"):
        await AnsiblePipeline("/nowhere.yaml").create(TestAnsible().order(), Memory())


async def test_breaking_it_off_ends_the_playbook_and_all_it_started(tmp_path: Path) -> None:
    sleeping = tmp_path / "play"
    sleeping.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\nsleep 600\n")
    sleeping.chmod(0o755)
    (tmp_path / "vm.yaml").write_text("[]")
    pipeline = AnsiblePipeline(str(tmp_path / "vm.yaml"), command=str(sleeping))
    task = asyncio.ensure_future(pipeline.create(TestAnsible().order(), Memory()))
    async with asyncio.timeout(60):
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
