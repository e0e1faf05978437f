"""The hook as a process on a real socket, and grpcio in the place of KubeVirt's launcher."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from launcher.hook.api import info_pb2, plugins_pb2, v1alpha1_pb2, v1alpha2_pb2, v1alpha3_pb2
from tests.conftest import Command
from tests.launcher.hook.callers import Caller
from tests.launcher.hook.domains import CASES, Case
from tests.launcher.hook.kubevirt import Card, Parts, domain, started, understood, vmi
from tests.launcher.hook.raw import INFO, raw
from tests.launcher.hook.test_rewrite import defined
from tests.processes import ROOT, Program, running
from tests.temporary import SHORT
from tests.waiting import allowed, until

VERSIONS: dict[str, Any] = {"v1alpha1": v1alpha1_pb2, "v1alpha2": v1alpha2_pb2, "v1alpha3": v1alpha3_pb2}
TWO, MIRROR = (next(case for case in CASES if case.name == name) for name in ("2 GPUs", "mirror"))
DEFINE = "/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain"


@contextmanager
def hook(socket: Path, *flags: str | Path, sysfs: Path = TWO.sysfs) -> Iterator[Program]:
    with running("gpu-launcher", "hook", "--socket", socket, "--sysfs", sysfs, *flags) as program:
        program.wait_for_line("is there for KubeVirt")
        yield program


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Caller, Program]]:
    """One sidecar for tests that leave it as it was."""
    with tempfile.TemporaryDirectory(prefix="gl-", dir=SHORT) as directory, hook(Path(directory, "a.sock")) as program:
        yield Caller(Path(directory, "a.sock")), program


def collected(directory: Path) -> tuple[Caller, info_pb2.InfoResult]:
    """As KubeVirt does it (pkg/hooks/manager.go): looks for sockets, and asks each for its Info, for a second."""
    until(lambda: any(directory.glob("*.sock")), 10)
    (socket,) = directory.glob("*.sock")
    caller = Caller(socket)
    made: Any = caller.channel.unary_unary(INFO)
    answer = made(b"", timeout=allowed(1), wait_for_ready=True)
    return caller, info_pb2.InfoResult.FromString(answer)


def define(caller: Caller, version: str, xml: bytes, sent: bytes) -> bytes:
    api = VERSIONS[version]
    request = api.OnDefineDomainParams(domainXML=xml, vmi=sent).SerializeToString()
    answer = caller(f"/kubevirt.hooks.{version}.Callbacks/OnDefineDomain", request)
    return bytes(api.OnDefineDomainResult.FromString(answer).domainXML)


def test_kubevirt_collects_it_within_its_second(short_dir: Path) -> None:
    with running("gpu-launcher", "hook", "--socket", short_dir / "gpu-launcher.sock", "--sysfs", TWO.sysfs):
        _, info = collected(short_dir)
    assert info.name == "gpu-launcher"
    assert list(info.versions) == ["v1alpha1", "v1alpha2", "v1alpha3"]
    assert [(point.name, point.priority) for point in info.hookPoints] == [("OnDefineDomain", 0)]


def test_it_imports_what_only_a_define_needs_after_its_answer_to_info_and_before_a_define(short_dir: Path) -> None:
    """Beside these imports, an emulated node missed the second that KubeVirt gives for Info."""
    before = (
        "import sys, launcher.hook.calls, launcher.hook.sidecar; sys.exit('launcher.vm.cards.claims' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", before], cwd=ROOT, check=True)
    with hook(short_dir / "a.sock") as program:
        time.sleep(0.5)
        assert not has_lxml(program)
        assert Path(short_dir, "a.sock").stat().st_mode & 0o777 == 0o666
        collected(short_dir)
        until(lambda: has_lxml(program))
        collected(short_dir)


def test_a_plugin_is_asked_no_info_and_imports_by_itself(short_dir: Path) -> None:
    with hook(short_dir / "a.sock", "--plugin") as program:
        until(lambda: has_lxml(program))


def has_lxml(program: Program) -> bool:
    return "/lxml/" in Path(f"/proc/{program.process.pid}/maps").read_text()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("calls", [2, 3])
def test_every_version_has_the_same_answer_however_often_kubevirt_defines(
    version: str, calls: int, served: tuple[Caller, Program]
) -> None:
    wanted, answers = TWO.xml, list[bytes]()
    for _ in range(calls):
        answers.append(define(served[0], version, wanted, vmi()))
        wanted = understood(answers[-1], knows_targets=False)
    assert answers[0] == TWO.answer().xml
    assert wanted == understood(answers[0], knows_targets=False)


@pytest.mark.parametrize("case", [TWO, MIRROR], ids=lambda case: case.name)
def test_a_plugin_answers_the_same(case: Case, short_dir: Path) -> None:
    sent = vmi(case.gpus, annotations=case.annotations)
    with hook(short_dir / "hook.sock", "--plugin", sysfs=case.sysfs):
        for context in ("Boot", "MigrationTarget"):
            request = plugins_pb2.MutateDomainRequest(
                domain_type="libvirt",
                domain=case.xml,
                vmi=sent,
                sidecar_context=plugins_pb2.SidecarContext(invocation_context=context),
            )
            assert mutated(short_dir / "hook.sock", request) == case.answer().xml


def mutated(socket: Path, request: plugins_pb2.MutateDomainRequest) -> bytes:
    method = "/kubevirt.hooks.plugins.v1alpha1.DomainHookService/MutateDomain"
    answer = Caller(socket)(method, request.SerializeToString())
    return bytes(plugins_pb2.MutateDomainResponse.FromString(answer).domain)


def test_another_hypervisors_domain_stays_as_it_is(short_dir: Path) -> None:
    with hook(short_dir / "hook.sock", "--plugin"):
        request = plugins_pb2.MutateDomainRequest(domain_type="cloud-hypervisor", domain=b"{}", vmi=vmi())
        assert mutated(short_dir / "hook.sock", request) == b"{}"


def test_cloud_init_stays_as_it_is_and_shutdown_is_heard(short_dir: Path) -> None:
    with hook(short_dir / "a.sock"):
        caller = Caller(short_dir / "a.sock")
        for version in ("v1alpha2", "v1alpha3"):
            sent = VERSIONS[version].PreCloudInitIsoParams(
                cloudInitNoCloudSource=b"{}", vmi=vmi(), cloudInitData=b"{1}"
            )
            answer = caller(f"/kubevirt.hooks.{version}.Callbacks/PreCloudInitIso", sent.SerializeToString())
            result = VERSIONS[version].PreCloudInitIsoResult.FromString(answer)
            assert (result.cloudInitNoCloudSource, result.cloudInitData) == (b"{}", b"{1}")
        assert caller("/kubevirt.hooks.v1alpha3.Callbacks/Shutdown") == b""


@pytest.mark.parametrize(
    ("xml", "sent", "said"),
    [
        (b"<domain", vmi(), "the domain: is no XML: "),
        (b'<!DOCTYPE domain [<!ENTITY a "b">]><domain>&a;</domain>', vmi(), "the domain: is none; expected"),
        (TWO.xml, b"{", "the VMI: is no JSON: "),
        (TWO.xml, vmi(annotations={"gpu-launcher.dev/topolgy": "numa"}), "did you mean gpu-launcher.dev/topology?"),
        (
            TWO.xml,
            vmi(annotations={"gpu-launcher.dev/policy": "numa"}),
            "not an annotation that gpu-launcher knows; known",
        ),
        (
            domain(Parts(cards=(Card(alias="gpu-gpu1", source="0000:77:00.0"),))),
            vmi(),
            "gpu 'gpu1': 0000:77:00.0 is not in sysfs; expected the /sys of the node that the pod is on",
        ),
    ],
)
def test_what_it_refuses_kubevirt_hears_in_one_line_and_so_does_the_log(
    xml: bytes, sent: bytes, said: str, served: tuple[Caller, Program]
) -> None:
    caller, program = served
    request = v1alpha3_pb2.OnDefineDomainParams(domainXML=xml, vmi=sent).SerializeToString()
    status, words = caller.status(DEFINE, request)
    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert said in words
    program.wait_for_line(said)
    assert define(caller, "v1alpha3", TWO.xml, vmi()) == TWO.answer().xml
    assert not [line for line in program.log if "Traceback" in line]


def test_a_request_that_is_larger_than_any_of_kubevirts_is_refused(served: tuple[Caller, Program]) -> None:
    caller, _ = served
    request = v1alpha3_pb2.OnDefineDomainParams(domainXML=bytes(5 << 20), vmi=vmi()).SerializeToString()
    assert caller.status(DEFINE, request)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert define(caller, "v1alpha3", TWO.xml, vmi()) == TWO.answer().xml


def test_kubevirts_call_is_answered_though_hundreds_come_behind_it_at_once(short_dir: Path) -> None:
    """As three sidecars that reconnect without a pause do it while the hook waits for a CPU. KubeVirt makes a
    connection for each call, and its request once it has the hook's settings."""
    with hook(short_dir / "a.sock") as program, ExitStack() as stack:
        with raw(short_dir / "a.sock") as first:
            first.flush()
            assert first.hear(), "it is there for more than its first caller"
        program.send(signal.SIGSTOP)
        kubevirts = stack.enter_context(raw(short_dir / "a.sock"))
        kubevirts.flush()
        for _ in range(200):
            other = stack.enter_context(raw(short_dir / "a.sock"))
            other.flush()
        for _ in range(2000):
            with socket.socket(socket.AF_UNIX) as gone:
                gone.connect(str(short_dir / "a.sock"))
        program.send(signal.SIGCONT)
        assert kubevirts.hear()
        call = kubevirts.call(INFO)
        kubevirts.flush()
        assert kubevirts.status(call) == (0, "")
        until(lambda: len([*Path(f"/proc/{program.process.pid}/fd").iterdir()]) < 60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_the_pod_does_and_takes_its_socket_away(number: signal.Signals, short_dir: Path) -> None:
    with hook(short_dir / "a.sock") as program:
        collected(short_dir)
        program.send(number)
        assert program.end(10) == 0
    assert list(short_dir.iterdir()) == []


def test_a_socket_that_a_killed_one_has_left_is_replaced_and_another_ones_is_not(
    short_dir: Path, gpu_launcher: Command
) -> None:
    with hook(short_dir / "a.sock") as killed:
        killed.kill()
    assert stat.S_ISSOCK((short_dir / "a.sock").stat().st_mode)
    with hook(short_dir / "a.sock"):
        result = gpu_launcher("hook", "--socket", short_dir / "a.sock")
        assert (result.returncode, result.stdout) == (1, "")
        assert "a.sock: cannot listen there: Address already in use; expected KubeVirt's volume" in result.stderr
        assert collected(short_dir)[1].name == "gpu-launcher"


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("true", "ERROR {}: cannot listen there: No such file or directory; expected KubeVirt's volume"),
        ("mkdir /run/kubevirt-hooks", "INFO hook {} is there for KubeVirt"),
    ],
    ids=["no volume", "its volume"],
)
def test_without_flags_as_in_the_annotation_it_is_where_kubevirt_looks_for_sockets(made: str, line: str) -> None:
    """With a /run of its own, whatever this machine's has."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    mounts = f'mount -t tmpfs run /run && {made} && exec "$0" "$@"'
    with running("gpu-launcher", "hook", within=("unshare", *user, "--mount", "sh", "-c", mounts)) as program:
        place = r"/var/run/kubevirt-hooks/gpu-launcher-[0-9a-f]{12}\.sock"
        until(lambda: program.log)
        assert re.match(line.format(place), program.log[0]), program.log


def test_explain_prints_what_it_would_change_and_changes_nothing(
    tmp_path: Path, qemu_driver: Any, gpu_launcher: Command
) -> None:
    sent = tmp_path / "vmi.json"
    sent.write_bytes(vmi({"gpu1": "a/b", "gpu2": "a/b"}))
    flags = ("hook", "--explain", "--vmi", sent, "--sysfs", TWO.sysfs)
    *_, (_, dumped) = started(TWO.emulated().xml, bytes, partial(defined, qemu_driver))
    result = gpu_launcher(*flags, stdin=dumped)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "gpu 'gpu1': 0000:e1:00.0 (VGA), 0000:e1:00.1 (audio); in the guest 0000:01:00.0, .1",
        "gpu 'gpu2': 0000:01:00.0 (VGA), 0000:01:00.1 (audio); in the guest 0000:02:00.0, .1",
        "",
    ]
    assert [line for line in lines[3:] if line.startswith("-")] == ["--- KubeVirt's domain"]
    assert sum("<hostdev" in line for line in lines if line.startswith("+")) == 2
    again = gpu_launcher(*flags, stdin=TWO.answer().xml.decode())
    assert again.stdout.splitlines() == lines[:2]
    (tmp_path / "domain.xml").write_text(dumped)
    assert gpu_launcher(*flags, tmp_path / "domain.xml").stdout == result.stdout
    assert gpu_launcher(*flags, "-", stdin=dumped).stdout == result.stdout


@pytest.mark.parametrize(
    ("flags", "stdin", "code", "said"),
    [
        (("--plugin",), "", 2, "--plugin: needs --socket; expected the socketPath of the Plugin"),
        (("--vmi", "x.json"), "", 2, "--vmi: is for --explain; leave it out: KubeVirt sends the VMI"),
        (
            ("--explain", "--vmi", "/nowhere"),
            "",
            2,
            "/nowhere: cannot be read: No such file or directory; expected the domain's VMI",
        ),
        (
            ("--explain", "/nowhere.xml"),
            "",
            2,
            "/nowhere.xml: cannot be read: No such file or directory; expected a domain",
        ),
        (("domain.xml",), "", 2, "domain.xml: is for --explain; leave it out: KubeVirt sends the domain"),
        (("--explain",), "<x/>", 2, "the domain: is none; expected the XML of a libvirt domain"),
        (("--explain", "--sysfs", "/nowhere"), TWO.xml.decode(), 1, "/nowhere: expected a sysfs tree"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(
    flags: tuple[str, ...], stdin: str, code: int, said: str, gpu_launcher: Command
) -> None:
    result = gpu_launcher("hook", *flags, stdin=stdin)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
