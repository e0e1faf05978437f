"""What a VM's metrics say of the guest's GPUs, as the guest tells, and that no scrape waits for it."""

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from xml.etree import ElementTree

from launcher.metrics.families import families, text_of
from launcher.metrics.gpus import GuestAnswer, Questions
from launcher.metrics.samples import DomainNames, PodSample
from launcher.runtime.hostdevs import hostdevs_in
from launcher.runtime.nvidia_smi import GPUReading
from launcher.runtime.vm import Phase
from pci.address import PCIAddress
from program.errors import Refusal
from tests.launcher.control.serving import CARDS, on_test_driver
from tests.launcher.metrics.scraping import read, scraping
from tests.launcher.runtime.test_nvidia_smi import SAID
from tests.waiting import allowed, until

GPU = GPUReading("580.126.09", 34, 10444 << 20, 81559 << 20, 41)
FIRST, OTHER = PCIAddress(0, 2, 0, 0), PCIAddress(0, 9, 0, 0)
DEVICES = hostdevs_in(ElementTree.fromstring(f"<domain><devices>{CARDS}</devices></domain>"), {1: 2, 2: 4})


def told(answer: GuestAnswer | None) -> Mapping[tuple[str, ...], float]:
    found = read(text_of(families(Phase.RUNNING, None, PodSample({}, None, {}), DomainNames({}, DEVICES), answer)))
    return {key: value for key, value in found.items() if key[0].startswith("guest_")}


def test_each_of_the_vms_own_gpus_has_its_numbers_in_base_units_and_a_time() -> None:
    gpu = ("gpu1", "0000:41:00.0")
    assert told(GuestAnswer(1795340007.5, {FIRST: GPU, OTHER: GPU})) == {
        ("guest_tells_gpus",): 1,
        ("guest_gpus_timestamp_seconds",): 1795340007.5,
        ("guest_gpu_info", *gpu, "580.126.09"): 1,
        ("guest_gpu_utilization_ratio", *gpu): 0.34,
        ("guest_gpu_memory_bytes", *gpu): 81559 << 20,
        ("guest_gpu_memory_used_bytes", *gpu): 10444 << 20,
        ("guest_gpu_temperature_celsius", *gpu): 41,
    }


def test_what_the_driver_does_not_tell_is_missing_and_all_of_it_after_a_refusal() -> None:
    found = told(GuestAnswer(1, {PCIAddress(0, 4, 0, 0): GPUReading("550.54", None, None, None, None)}))
    of_vgpu = ("guest_gpu_info", "my-vgpu", "7d43ffa6-98a8-4ef4-b0e4-c55bc4c9b9c0", "550.54")
    assert found == {("guest_tells_gpus",): 1, ("guest_gpus_timestamp_seconds",): 1, of_vgpu: 1}
    assert told(GuestAnswer(1, None)) == {("guest_tells_gpus",): 0}
    assert told(None) == {}


class Guest:
    """An agent whose nvidia-smi says this once it may, or is refused; what was asked of it."""

    def __init__(self, says: Callable[[], bytes] = lambda: SAID) -> None:
        self.asked: list[str] = []
        self.may_end, self.answers = threading.Event(), threading.Event()
        self.may_end.set()
        self.answers.set()
        self._says, self._pids = says, count(814)

    def __call__(self, text: str) -> str:
        self.answers.wait(allowed(30))
        command = json.loads(text)
        self.asked.append(command["execute"])
        if command["execute"] == "guest-exec":
            return json.dumps({"return": {"pid": next(self._pids)}})
        if not self.may_end.is_set():
            return json.dumps({"return": {"exited": False}})
        said = base64.b64encode(self._says()).decode()
        return json.dumps({"return": {"exited": True, "exitcode": 0, "out-data": said}})

    @property
    def starts(self) -> int:
        return self.asked.count("guest-exec")


def answered(questions: Questions) -> GuestAnswer:
    """The answer to one more question, once the thread of the last is gone."""
    until(lambda: all(thread.name != "question to nvidia-smi" for thread in threading.enumerate()))
    before = questions.answer
    questions.begin()
    until(lambda: questions.answer is not before)
    assert questions.answer is not None
    return questions.answer


def test_an_answer_has_its_time_and_is_not_asked_for_again_before_it_is_old() -> None:
    guest = Guest()
    questions = Questions(guest)
    began = time.time()
    found = answered(questions)
    assert found.gpus is not None
    assert found.gpus[PCIAddress(0, 7, 0, 0)] == GPU
    assert began <= found.time <= time.time()
    for _ in range(3):
        questions.begin()
    assert (guest.starts, questions.answer) == (1, found)


def test_nobody_waits_for_a_silent_agent_and_it_is_asked_once() -> None:
    guest = Guest()
    questions = Questions(guest, apart=0)
    first = answered(questions)
    guest.answers.clear()
    for _ in range(3):
        questions.begin()
    assert questions.answer is first, "the last answer stays until there is another"
    guest.answers.set()
    until(lambda: questions.answer is not first)
    assert guest.starts == 2


def test_a_program_that_does_not_end_is_no_answer_and_is_not_started_beside_itself() -> None:
    guest = Guest()
    questions = Questions(guest, apart=0, within=allowed(0.1))
    guest.may_end.clear()
    for _ in range(3):
        assert answered(questions).gpus is None
    assert guest.starts == 1
    guest.may_end.set()
    assert answered(questions).gpus is not None
    assert guest.starts == 2


def test_after_a_refusal_the_next_question_begins_anew() -> None:
    guest = Guest()
    guest.may_end.clear()
    refused = threading.Event()

    def ask(text: str) -> str:
        if refused.is_set():
            raise Refusal("the guest's agent", "is not connected", "install it")
        return guest(text)

    questions = Questions(ask, apart=0, within=allowed(0.1))
    assert answered(questions).gpus is None
    refused.set()
    assert answered(questions).gpus is None
    refused.clear()
    guest.may_end.set()
    assert answered(questions).gpus is not None
    assert guest.starts == 2


def test_a_guest_that_invents_versions_makes_16_series_at_most_and_is_asked_no_more() -> None:
    versions = count(1)
    guest = Guest(lambda: SAID.replace(b"580.126.09", b"1.%d" % next(versions)))
    questions = Questions(guest, apart=0)
    assert [answered(questions).gpus is not None for _ in range(17)] == [True] * 16 + [False]
    # It would give 100,000 answers, each with versions that count as seen: 270 MiB a day of the launcher's memory.
    for _ in range(100_000):
        questions.begin()
    assert (guest.starts, next(versions)) == (17, 18)
    assert questions.answer is not None
    assert questions.answer.gpus is None


def test_a_guest_without_an_agent_tells_nothing_and_one_that_must_not_be_asked_is_not_asked(tmp_path: Path) -> None:
    xml = f"<domain><devices>{CARDS}</devices></domain>"
    with on_test_driver(tmp_path, devices=CARDS, asks_nvidia_smi=True) as vm, scraping(vm, xml, tmp_path) as scrape:
        until(lambda: scrape().get(("guest_tells_gpus",)) == 0)
    with on_test_driver(tmp_path, devices=CARDS) as vm, scraping(vm, xml, tmp_path) as scrape:
        scrape()
        time.sleep(0.6)  # so that the next is another page
        assert not any(name.startswith("guest_") for name, *_ in scrape())
