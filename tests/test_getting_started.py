"""docs/getting-started.md without a lab: the page and the lab's table of what is replaced in it fit together. That its
commands do what it says, tests/lab/test_getting_started.py shows."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from launcher.commands.ctl import Action
from plugin.config_file import read_config
from tests.conftest import Command
from tests.lab import page
from tests.processes import BIN, ROOT

TEXT = page.PAGE.read_text()
BLOCKS = page.blocks(TEXT)
SCRIPTS = "\n".join(block.script for block in BLOCKS)
each_block = pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")

#: What is called in the blocks as the lab runs them: it has its own kubectl, helm and ssh, and the machine's shell.
SHELL = {"sed", "cat", "echo", "grep", "head", "tail", "export", "timeout", "true", ":"}
SHELL |= {"for", "until", "while", "done", "sleep"}
PROGRAMS = SHELL | {"kubectl", "helm", "ssh", ".venv/bin/gpu-launcher"}


def test_each_fence_of_the_page_is_a_block_of_commands_or_what_they_print() -> None:
    fences = re.findall(r"^```(.*)$", TEXT, re.MULTILINE)
    assert fences[1::2] == [""] * (len(fences) // 2)
    assert {*fences[::2]} == {"sh", "text"}
    assert len(BLOCKS) == fences.count("sh")
    for block in BLOCKS:
        first, *_ = block.script.splitlines()
        assert TEXT.splitlines()[block.line - 1] == first


def test_no_command_of_the_page_stands_outside_a_block() -> None:
    """Where the test would not see it: only text is indented, below items of a list."""
    outside = re.sub(r"(?ms)^```.*?^```$", "", TEXT)
    assert not re.findall(r"^    \S", outside, re.MULTILINE)


def test_what_the_table_replaces_stands_in_the_page_and_in_the_files() -> None:
    for entry in page.IN_BLOCKS:
        assert entry.old in SCRIPTS, entry.why
    for name, table in page.IN_FILES.items():
        text = (ROOT / name).read_text()
        for entry in table:
            assert text.count(entry.old) == 1, f"{name}: {entry.why}"


@pytest.mark.parametrize("part", [*page.SEEN, *page.CODES])
def test_what_is_said_of_one_block_is_of_one(part: str) -> None:
    assert len([block for block in BLOCKS if part in block.script]) == 1


@each_block
def test_a_block_is_bash_and_calls_what_the_lab_has(block: page.Block) -> None:
    for script in (block.script, page.replaced(block.script, page.IN_BLOCKS)):
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
    in_lab = page.replaced(block.script, page.IN_BLOCKS).replace("\\\n", " ")
    # The first word of each command: of a line, after a pipe, or in $( ).
    commands = re.findall(r"(?m)(?:^ *|\| |\$\(|\{ )([a-z.:][\w./-]*)", in_lab)
    assert {*commands} <= PROGRAMS, commands


@each_block
def test_the_files_that_a_block_names_are_there(block: page.Block) -> None:
    for name in re.findall(r"(?<![\w$/])(?:deploy|docs|tests|\.venv)/[\w./-]+", block.script):
        assert (ROOT / name).exists() or (ROOT / name).is_symlink(), name


def test_what_the_lab_does_not_replace_names_no_registry_and_no_other_node() -> None:
    in_lab = page.replaced(SCRIPTS, page.IN_BLOCKS)
    for word in ("gpu-node-1", "dist/", "reboot", "make ", " -it "):
        assert word not in in_lab


def test_the_pages_version_and_actions_are_the_programs() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {*re.findall(r"gpu-(?:plugin|launcher|\$program)[:-](\d[\d.]*\d)", TEXT)} == {version}
    actions = {*re.findall(r"gpu-launcher ctl (\w+)", TEXT)}
    assert actions
    assert actions <= {action.value for action in Action}


def test_the_labs_clone_has_a_vm_and_a_config_that_are_taken(tmp_path: Path, gpu_launcher: Command) -> None:
    """As they are after the replacements: one card of the lab's, and its images."""
    clone = tmp_path / "clone"
    clone.mkdir()
    page.write_clone(clone)
    template = (clone / "deploy/chart/templates/configmap.yaml").read_text()
    (tmp_path / "config.yaml").write_text(dedent(template.rpartition("{{- else }}\n")[2].partition("{{- end }}")[0]))
    (rule,) = read_config(tmp_path / "config.yaml").offer
    assert (rule.device, rule.resource) == (("1234:1111",), "example.com/pgpu")
    printed = gpu_launcher("pod", clone / "deploy/example/vm.yaml", "--image", "localhost/gpu-launcher:0.1.0")
    assert printed.returncode == 0, printed.stderr
    (pod,) = (one for one in yaml.safe_load_all(printed.stdout) if one["kind"] == "Pod")
    assert "devices.gpu-launcher.dev/kvm" in json.dumps(pod)
    images = re.findall(r'"(?:image|reference)": "([^"]+)"', json.dumps(pod))
    assert {*images} == {"localhost/gpu-launcher:0.1.0", "localhost/guest:lab", "localhost/disk:lab"}
    # What the table does to the probe finds it.
    assert "\n      periodSeconds: 5\n" in printed.stdout


def _paste(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", page.session(script, str(directory), str(BIN))], capture_output=True, text=True, check=False
    )


def test_a_block_stands_on_those_before_it_and_ends_at_its_first_mistake(tmp_path: Path) -> None:
    assert _paste("export NODE=modern\n", tmp_path).returncode == 0
    assert _paste('echo "$NODE"\n', tmp_path).stdout == "modern\n"
    for mistake in ("false\necho on", "false | cat\necho on", "nothing-like-it\necho on", 'echo "$UNSET"\necho on'):
        done = _paste(mistake, tmp_path)
        assert done.returncode != 0, mistake
        assert "on" not in done.stdout.split(), mistake


def test_the_labs_ssh_runs_what_it_is_given_on_the_node_and_has_its_exit_code(tmp_path: Path) -> None:
    """With a shell of this machine for the node's."""
    program = tmp_path / "ssh"
    program.write_text(page.ssh("sh", "printf guest"))
    program.chmod(0o755)

    def called(*arguments: str) -> tuple[str, int]:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        return done.stdout, done.returncode

    assert called(f"root@{page.NODE}", "echo", "here; pwd >/dev/null") == ("here\n", 0)
    assert called(f"root@{page.NODE}", "echo before && false") == ("before\n", 1)
    assert called("-p", "2222", "ubuntu@localhost", "lspci") == ("guest\n", 0)


def test_the_labs_kubectl_asks_again_what_ctl_was_not_told(tmp_path: Path) -> None:
    """And nothing else; with a program that fails every time for kubectl."""
    program, calls = tmp_path / "kubectl", tmp_path / "calls"
    program.write_text(page.kubectl(f"sh -c 'echo >> {calls}; exit 1'"))
    program.chmod(0o755)
    for arguments, expected in ((("exec", "vm", "--", "gpu-launcher", "ctl", "state"), 5), (("get", "pods"), 1)):
        calls.write_text("")
        assert subprocess.run([program, *arguments], check=False).returncode == 1
        assert len(calls.read_text()) == expected


def test_the_block_that_looks_at_the_vm_works_as_pasted(tmp_path: Path) -> None:
    """The one that needs no cluster, with the page's own files."""
    (block,) = (block for block in BLOCKS if "> my-vm.yaml" in block.script)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/gpu-launcher").symlink_to(BIN / "gpu-launcher")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_ed25519.pub").write_text("ssh-ed25519 AAAA me@here\n")
    done = _paste(f"export HOME={tmp_path} REGISTRY=localhost\n{block.script}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(page.SEEN["> my-vm.yaml"], done.stdout)
    assert "0000:01:00.0" in done.stdout
    vm = yaml.safe_load((tmp_path / "my-vm.yaml").read_text())
    (seed,) = (v for v in vm["spec"]["template"]["spec"]["volumes"] if "cloudInitNoCloud" in v)
    assert yaml.safe_load(seed["cloudInitNoCloud"]["userData"])["ssh_authorized_keys"] == ["ssh-ed25519 AAAA me@here"]
